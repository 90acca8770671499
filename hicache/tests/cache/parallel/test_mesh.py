"""The mesh: every rank computes the same lists of ranks, and the ranks of a list differ along one axis only."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.config import SINGLE_RANK, Topology
from hicache.errors import ConfigurationError
from hicache.parallel.mesh import AXES, axis_ranks, places, topology_of, tree_ranks, world_rank, world_size

LARGEST = {"tp_size": 3, "cp_size": 3, "pp_size": 2, "dp_size": 2}
SIZES = st.fixed_dictionaries({name: st.integers(1, size) for name, size in LARGEST.items()})
MESHES = SIZES.map(lambda sizes: topology_of(0, **sizes))


def test_tp_changes_fastest_then_cp_dp_and_pp() -> None:
    mesh = topology_of(0, tp_size=2, cp_size=2, pp_size=2, dp_size=2)
    order = [(place.tp_rank, place.cp_rank, place.dp_rank, place.pp_rank) for place in places(mesh)]
    expected = [(tp, cp, dp, pp) for pp in (0, 1) for dp in (0, 1) for cp in (0, 1) for tp in (0, 1)]
    assert order == expected, f"RANK-5: expected {expected}, got {order}"


def test_the_lists_of_two_by_two_by_two() -> None:
    lists = axis_ranks(topology_of(5, tp_size=2, cp_size=2, pp_size=2, dp_size=1))
    expected = {
        "tp": ((0, 1), (2, 3), (4, 5), (6, 7)),
        "cp": ((0, 2), (1, 3), (4, 6), (5, 7)),
        "pp": ((0, 4), (1, 5), (2, 6), (3, 7)),
    }
    assert lists == expected, f"RANK-6: expected {expected}, got {lists}"
    assert list(lists) == list(expected), f"RANK-6: the axes come in the order {list(expected)}, got {list(lists)}"


@given(MESHES)
def test_world_ranks_and_places_correspond_one_to_one(mesh: Topology) -> None:
    ranks = [world_rank(place) for place in places(mesh)]
    assert ranks == list(range(world_size(mesh))), f"RANK-5: the ranks of the places are {ranks}"
    assert len(set(places(mesh))) == world_size(mesh), "RANK-5: no two ranks have the same place"


@given(MESHES)
def test_every_world_rank_sees_the_same_lists_in_the_same_order(mesh: Topology) -> None:
    first = [(axis, *lists) for axis, lists in axis_ranks(mesh).items()]
    for rank, place in enumerate(places(mesh)):
        seen = [(axis, *lists) for axis, lists in axis_ranks(place).items()]
        assert seen == first, f"RANK-6: rank {rank} sees {seen}, rank 0 sees {first}"


@given(MESHES)
def test_the_ranks_of_a_list_differ_in_its_axis_alone(mesh: Topology) -> None:
    by_rank = places(mesh)
    for axis, lists in axis_ranks(mesh).items():
        assert sorted(sum(lists, ())) == list(range(len(by_rank))), (
            f"RANK-6: expected each rank in one list of {axis}, got {lists}"
        )
        for ranks in lists:
            along = [getattr(by_rank[rank], f"{axis}_rank") for rank in ranks]
            assert along == list(range(len(along))), f"RANK-6: {ranks} are {along} along {axis}"
            others = {replace(by_rank[rank], **{f"{axis}_rank": 0}) for rank in ranks}
            assert len(others) == 1, f"RANK-6: {ranks} of {axis} differ in more than {axis}: {others}"


@given(MESHES)
def test_the_ranks_of_a_tree_are_all_ranks_connected_by_groups(mesh: Topology) -> None:
    lists = sum(axis_ranks(mesh).values(), ())
    for rank, place in enumerate(places(mesh)):
        reached = {rank}
        for _ in AXES:
            for ranks in lists:
                reached |= set(ranks) if reached & set(ranks) else set()
        assert tree_ranks(place) == tuple(sorted(reached)), f"RANK-4: the tree of rank {rank} is on {sorted(reached)}"


def test_a_rank_outside_the_mesh_is_refused() -> None:
    for rank in (-1, 4):
        with pytest.raises(ConfigurationError, match=f"world rank {rank} is not in a mesh"):
            topology_of(rank, tp_size=2, cp_size=2, pp_size=1, dp_size=1)


def test_an_axis_without_ranks_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cp_size must be 1 or more, got 0"):
        topology_of(0, tp_size=2, cp_size=0, pp_size=1, dp_size=1)


def test_a_place_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        SINGLE_RANK.tp_rank = 1  # type: ignore[misc]
    single = topology_of(0, tp_size=1, cp_size=1, pp_size=1, dp_size=1)
    assert single == SINGLE_RANK, f"RANK-5: expected {SINGLE_RANK} for a mesh of one rank, got {single}"
