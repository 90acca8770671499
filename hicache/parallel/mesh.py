"""The mesh: which world ranks make up each group, from one Topology; the same lists in one order on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hicache.config import Topology
from hicache.errors import ConfigurationError

AXES = ("tp", "cp", "pp")
"""The axes along which ranks share a tree, the innermost first. Each data-parallel replica has its own tree."""


def topology_of(rank: int, *, tp_size: int, cp_size: int, pp_size: int, dp_size: int) -> Topology:
    """The place of a world rank in the mesh: tp changes fastest, then cp, dp and pp.

    Raises ConfigurationError for a size below 1 and for a rank that the mesh does not have.
    """
    sizes = {"tp": tp_size, "cp": cp_size, "dp": dp_size, "pp": pp_size}
    ranks, rest = {}, rank
    for axis, size in sizes.items():
        if size < 1:
            raise ConfigurationError(f"{axis}_size must be 1 or more, got {size}")
        rest, ranks[axis] = divmod(rest, size)
    if rest:
        raise ConfigurationError(f"world rank {rank} is not in a mesh of {sizes}")
    return Topology(
        tp_rank=ranks["tp"],
        tp_size=tp_size,
        cp_rank=ranks["cp"],
        cp_size=cp_size,
        pp_rank=ranks["pp"],
        pp_size=pp_size,
        dp_rank=ranks["dp"],
        dp_size=dp_size,
    )


def world_rank(topology: Topology) -> int:
    """The world rank of a place in the mesh."""
    outer = topology.pp_rank * topology.dp_size + topology.dp_rank
    return (outer * topology.cp_size + topology.cp_rank) * topology.tp_size + topology.tp_rank


def world_size(topology: Topology) -> int:
    """How many ranks the mesh has, including those of all replicas."""
    return topology.tp_size * topology.cp_size * topology.pp_size * topology.dp_size


def places(topology: Topology) -> tuple[Topology, ...]:
    """Every place of the mesh, in the order of world ranks."""
    return tuple(
        topology_of(
            rank,
            tp_size=topology.tp_size,
            cp_size=topology.cp_size,
            pp_size=topology.pp_size,
            dp_size=topology.dp_size,
        )
        for rank in range(world_size(topology))
    )


def axis_ranks(topology: Topology) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    """For tp, cp and pp, in this order: every list of world ranks that differ only in that axis, by first rank."""
    return {axis: _lists(topology, axis) for axis in AXES}


def _lists(topology: Topology, axis: str) -> tuple[tuple[int, ...], ...]:
    lists: dict[Topology, list[int]] = {}
    for rank, place in enumerate(places(topology)):
        lists.setdefault(replace(place, **{f"{axis}_rank": 0}), []).append(rank)
    return tuple(tuple(ranks) for ranks in lists.values())


def tree_ranks(topology: Topology) -> tuple[int, ...]:
    """The world ranks that share a tree with this rank: those of its replica."""
    return tuple(rank for rank, place in enumerate(places(topology)) if place.dp_rank == topology.dp_rank)
