"""Searches for sequences of requests, transfers and faults after which the ranks differ or break a law."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.mesh import Mesh

from .configurations import CP2_TP2, PP2_TP2, TP2
from .rank_actions import STORAGE_NEEDS
from .rank_machine import RankMachine

SHARE = 10
"""Divides the number of examples of a profile, since each step runs on every rank."""

MET = {"MIN progress", "MIN completed", "MAX prefetch end", "MIN capacities"}
"""The collectives that the examples of the profile ci must reach."""


@pytest.mark.parametrize("mesh", [TP2, CP2_TP2, PP2_TP2], ids=lambda mesh: mesh.name)
@clause(
    *("RANK-1", "RANK-2", "RANK-4", "RANK-7", "FETCH-7", "FLOW-7", "POOL-1"),
    needs=(*STORAGE_NEEDS, Capability.REQUESTS, Capability.SIZES, Capability.BYTES),
)
def test_ranks_hold_one_tree_whatever_happens_on_each(adapter_type: type[CacheAdapter], mesh: Mesh) -> None:
    bound = {"adapter_type": adapter_type, "mesh": mesh, "met": set[str]()}
    machine: type[RankMachine] = type(RankMachine.__name__, (RankMachine,), bound)
    examples = max(5, settings().max_examples // SHARE)
    run_state_machine_as_test(machine, settings=settings(max_examples=examples))
    # The examples of ci are the same each time; a few random ones may miss a collective.
    missed = MET - machine.met if settings().derandomize else set()
    assert not missed, f"{examples} examples did not reach {sorted(missed)}; they reached {sorted(machine.met)}"
