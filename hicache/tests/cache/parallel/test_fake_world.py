"""Groups on torch's fake process group: what a rank makes, sends and closes, on meshes of up to 64 ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from hicache.config import Topology
from hicache.errors import InvariantError
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import places, topology_of, world_rank, world_size
from hicache.parallel.torch_group import BLOCK, open_groups
from hicache.testing.adapter import Capability
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.process_world import ProcessWorld
from hicache.tests.cache.parallel.fake_world import FakeWorld, Sent, fake_world

TIMEOUT_S = 60.0
TWO_BY_TWO_BY_TWO = topology_of(0, tp_size=2, cp_size=2, pp_size=2, dp_size=1)


# What is opened is closed.


def test_closed_groups_leave_nothing_in_torch() -> None:
    with fake_world(TWO_BY_TWO_BY_TWO) as world:
        for opening in range(3):
            with open_groups(TWO_BY_TWO_BY_TWO, world.store, "cpu", TIMEOUT_S):
                assert world.open_groups == 3, f"opening {opening}: expected 3 groups, torch has {world.open_groups}"
            assert world.open_groups == 0, f"closing {opening}: expected no group, torch has {world.open_groups}"


def test_groups_are_closed_once_and_then_refuse_calls() -> None:
    with fake_world(TWO_BY_TWO_BY_TWO) as world:
        groups = open_groups(TWO_BY_TWO_BY_TWO, world.store, "cpu", TIMEOUT_S)
        groups.close()
        groups.close()
        with pytest.raises(InvariantError, match=r"the groups of this rank are closed: a call of tp came after close"):
            groups["tp"].reduce([1], Reduction.MIN, "progress")


def test_groups_that_were_not_all_opened_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise InvariantError("the first barrier")

    monkeypatch.setattr("hicache.parallel.torch_group.TorchGroup.barrier", fail)
    with fake_world(TWO_BY_TWO_BY_TWO) as world:
        with pytest.raises(InvariantError, match="the first barrier"):
            open_groups(TWO_BY_TWO_BY_TWO, world.store, "cpu", TIMEOUT_S)
        assert world.open_groups == 0, f"expected no group after a failed opening, torch has {world.open_groups}"


def test_a_cache_on_a_rank_that_is_opened_again_leaves_no_group() -> None:
    config = next(config for config in standard_configurations(frozenset(Capability)) if config.storage is None)
    config = replace(config, model=reshaped(config.model, kv_heads=2), topology=TWO_BY_TWO_BY_TWO)
    with fake_world(TWO_BY_TWO_BY_TWO) as world:
        for opening in range(3):
            ranks = ProcessWorld(
                TWO_BY_TWO_BY_TWO, world.store, "cpu", TIMEOUT_S, is_recorded=False, note=lambda _: None
            )
            ReferenceAdapter.on_rank(config, ranks).close()
            assert world.open_groups == 0, f"closing {opening}: expected no group, torch has {world.open_groups}"


# Every rank of a world makes the same groups and the same collectives. Each is played alone, one after the other.

MESHES = {
    "tp64": (64, 1, 1, 1),
    "cp64": (1, 64, 1, 1),
    "pp64": (1, 1, 64, 1),
    "dp64": (1, 1, 1, 64),
    "tp8-pp8": (8, 1, 8, 1),
    "tp4-cp4-pp4": (4, 4, 4, 1),
    "tp8-cp2-dp4": (8, 2, 1, 4),
    "tp2-cp2-pp2-dp8": (2, 2, 2, 8),
    "tp3-cp5-pp2-dp2": (3, 5, 2, 2),
}
"""By name: the sizes along tp, cp, pp and dp, 64 or 60 ranks in all."""


def decide_everything(agreement: Agreement, rank: int) -> None:
    """Each verb of an agreement, with numbers that differ from rank to rank: no, few and many."""
    agreement.least({"b": rank, "a": -rank}, "capacities")
    agreement.acknowledged(3, [rank] * 200, rank, 100)
    agreement.acknowledged(3, [])
    agreement.ended_waits(agreement.votes([rank % 2 == 0]), "")
    agreement.completed({"swa": rank, "kv": 3})
    agreement.together(lambda: rank, lambda _: None, "open")
    agreement.every("clear", did=True)


def played(place: Topology) -> FakeWorld:
    """What a rank makes and sends when it opens its groups and decides everything."""
    with fake_world(place) as world, open_groups(place, world.store, "cpu", TIMEOUT_S) as groups:
        decide_everything(Agreement(groups), world_rank(place))
    return world


def stuck(sent: Sequence[Sequence[Sent]]) -> dict[int, Sent]:
    """The collective in which each rank waits forever when all ranks run together; empty when all come to their end."""
    left = [list(reversed(of_rank)) for of_rank in sent]
    ready = list(range(len(left)))
    while ready:
        rank = ready.pop()
        if not left[rank]:
            continue
        call = left[rank][-1]
        if all(left[other] and left[other][-1] == call for other in call.ranks):
            for other in call.ranks:
                left[other].pop()
            ready.extend(call.ranks)
    return {rank: of_rank[-1] for rank, of_rank in enumerate(left) if of_rank}


@pytest.fixture(params=MESHES.values(), ids=list(MESHES), scope="module")
def mesh(request: pytest.FixtureRequest) -> Topology:
    tp_size, cp_size, pp_size, dp_size = request.param
    return topology_of(0, tp_size=tp_size, cp_size=cp_size, pp_size=pp_size, dp_size=dp_size)


@pytest.fixture(scope="module")
def worlds(mesh: Topology) -> list[FakeWorld]:
    """By rank, what the ranks of a mesh do."""
    return [played(place) for place in places(mesh)]


def test_every_rank_of_a_large_world_makes_the_same_groups_in_the_same_order(
    mesh: Topology, worlds: list[FakeWorld]
) -> None:
    size = world_size(mesh)
    expected = sum(size // of_axis for of_axis in (mesh.tp_size, mesh.cp_size, mesh.pp_size) if of_axis > 1)
    for rank, world in enumerate(worlds):
        assert len(world.made) == expected, f"RANK-6: expected {expected} groups, rank {rank} made {len(world.made)}"
        assert world.made == worlds[0].made, f"RANK-6: rank {rank} made {world.made}, rank 0 made {worlds[0].made}"


def test_every_rank_of_a_large_world_sends_as_many_numbers_in_as_many_collectives(worlds: list[FakeWorld]) -> None:
    shapes = [[(len(one.ranks), one.operation, one.shape, one.dtype) for one in world.sent] for world in worlds]
    for rank, sent in enumerate(shapes):
        assert sent == shapes[0], f"RANK-2: rank {rank} sends {sent}, rank 0 sends {shapes[0]}"
    of_axes = len({one.ranks for one in worlds[0].sent})
    longer = [call for call in shapes[0] if call[2] != (BLOCK,)]
    assert {call[3] for call in shapes[0]} <= {torch.int64}, f"expected int64 alone, got {shapes[0]}"
    assert len(longer) == of_axes, f"expected one more of the longer call on each of {of_axes} axes, got {longer}"


def test_no_rank_of_a_large_world_waits_for_ever(worlds: list[FakeWorld]) -> None:
    waiting = stuck([world.sent for world in worlds])
    assert waiting == {}, f"RANK-2: these ranks wait forever, each in this collective: {waiting}"


def test_a_rank_that_skips_one_collective_would_be_seen() -> None:
    worlds = [played(place) for place in places(TWO_BY_TWO_BY_TWO)]
    skipped = worlds[3].sent.pop(5)
    waiting = stuck([world.sent for world in worlds])
    assert waiting.keys() & set(skipped.ranks), f"rank 3 skipped {skipped}: expected a rank to wait, got {waiting}"
