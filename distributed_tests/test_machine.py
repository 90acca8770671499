"""Lets Hypothesis look for requests, transfers and troubles after which ranks are not what they must be."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.mesh import Mesh

from .meshes import CP2_TP2, PP2_TP2, TP2
from .rank_machine import RankMachine
from .skew import STORAGE_NEEDS

SHARE = 10
"""A machine runs one of so many of a profile's examples: a step is one of each rank."""

MET = {"MIN progress", "MIN completed", "MAX prefetch end", "MIN capacities"}
"""What the ranks must have agreed upon in the examples of ci."""


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
    # Those of ci are the same each time; a few drawn at random may miss something.
    missed = MET - machine.met if settings().derandomize else set()
    assert not missed, f"{examples} examples never came to agree upon {sorted(missed)}; they met {sorted(machine.met)}"
