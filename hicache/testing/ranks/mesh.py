"""Mesh: the number of ranks that share a tree, by axis, and the position of each rank."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.config import Topology

AXES = ("tp", "cp", "pp")
"""The axes along which ranks share a tree, innermost first."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """The ranks of one replica: `tp_size` * `cp_size` * `pp_size`, numbered with tp innermost and pp outermost."""

    tp_size: int
    cp_size: int
    pp_size: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.tp_size * self.cp_size * self.pp_size

    @property
    def name(self) -> str:
        """The axes with several ranks, outermost first, such as `pp2-tp2`."""
        sizes = {"pp": self.pp_size, "cp": self.cp_size, "tp": self.tp_size}
        return "-".join(f"{axis}{size}" for axis, size in sizes.items() if size > 1) or "tp1"

    def topology(self, rank: int) -> Topology:
        """The position of a rank on all axes."""
        rest, tp_rank = divmod(rank, self.tp_size)
        pp_rank, cp_rank = divmod(rest, self.cp_size)
        return Topology(
            tp_rank=tp_rank,
            tp_size=self.tp_size,
            cp_rank=cp_rank,
            cp_size=self.cp_size,
            pp_rank=pp_rank,
            pp_size=self.pp_size,
            dp_rank=0,
            dp_size=1,
        )

    def rank_of(self, topology: Topology) -> int:
        """The rank at a position."""
        return (topology.pp_rank * self.cp_size + topology.cp_rank) * self.tp_size + topology.tp_rank


def mesh_of(topology: Topology) -> Mesh:
    """The mesh of a topology."""
    return Mesh(topology.tp_size, topology.cp_size, topology.pp_size)


def axes_of(topology: Topology) -> dict[str, tuple[int, int, str]]:
    """By axis with several ranks: this rank's index on it, the number of ranks, and a unique name of the group."""
    sizes = {axis: getattr(topology, f"{axis}_size") for axis in AXES}
    places = {axis: getattr(topology, f"{axis}_rank") for axis in AXES}
    return {
        axis: (places[axis], size, "/".join([axis, *(f"{other}{places[other]}" for other in AXES if other != axis)]))
        for axis, size in sizes.items()
        if size > 1
    }
