"""Groups on torch's fake process group: what a rank makes, sends and closes, on meshes of up to 64 ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache.errors import InvariantError
from hicache.parallel.group import Reduction
from hicache.parallel.mesh import topology_of
from hicache.parallel.torch_group import open_groups
from hicache.testing.adapter import Capability
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.configurations import standard_configurations
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.process_world import ProcessWorld
from hicache.tests.parallel.fake_world import fake_world

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
