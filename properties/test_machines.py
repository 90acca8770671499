"""Runs the state machines over every combination of components that the adapter can serve."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis.stateful import run_state_machine_as_test

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.plugin.tags import OPERATIONS
from hicache.types import Component, Pool

from .device_machine import DeviceMachine
from .machine import CacheMachine
from .request_machine import RequestMachine

NEEDS = {
    Component.FULL.value: frozenset[Capability](),
    Component.SWA.value: frozenset({Capability.SWA}),
    Component.MAMBA.value: frozenset({Capability.MAMBA}),
    Pool.INDEXER.value: frozenset({Capability.INDEXER}),
}
COMBINATIONS = [
    (("full",), ()),
    (("full",), ("indexer",)),
    (("full", "swa"), ()),
    (("full", "mamba"), ()),
    (("full", "swa", "mamba"), ("indexer",)),
]
COMBINED = pytest.mark.parametrize(
    ("components", "sidecars"), COMBINATIONS, ids=["+".join(names + extra) for names, extra in COMBINATIONS]
)
LOOKING = (Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES)


def search(
    machine: type[CacheMachine],
    adapter_type: type[CacheAdapter],
    components: tuple[str, ...],
    sidecars: tuple[str, ...],
) -> int:
    """Let Hypothesis look for a sequence of steps after which something is wrong; returns the verbs driven."""
    lacking = frozenset().union(*(NEEDS[name] for name in components + sidecars)) - adapter_type.capabilities
    if lacking:
        reasons = ", ".join(sorted(f"{capability.name}: {capability.value}" for capability in lacking))
        pytest.skip(f"{adapter_type.__name__} does not declare {reasons}")
    bound = {"adapter_type": adapter_type, "components": components, "sidecars": sidecars, "operations": []}
    opened: type[CacheMachine] = type(machine.__name__, (machine,), bound)
    run_state_machine_as_test(opened)
    return sum(opened.operations)


@clause(
    *("POOL-1", "POOL-2", "POOL-3", "MATCH-1", "INS-1", "INS-4", "INS-5", "INS-7", "LOCK-2", "LOCK-4", "LOCK-5"),
    *("EVICT-1", "EVICT-2", "EVICT-5", "EVICT-6", "EVICT-9"),
    needs=LOOKING,
)
@COMBINED
def test_any_order_of_verbs(
    adapter_type: type[CacheAdapter],
    components: tuple[str, ...],
    sidecars: tuple[str, ...],
    record_property: Callable[[str, object], None],
) -> None:
    """Whatever a scheduler does, the cache agrees with the oracle and keeps every law."""
    record_property(OPERATIONS, search(DeviceMachine, adapter_type, components, sidecars))


@clause("POOL-1", "REQ-1", "REQ-2", "REQ-3", "REQ-4", "REQ-5", needs=(*LOOKING, Capability.REQUESTS))
@COMBINED
def test_any_mix_of_requests(
    adapter_type: type[CacheAdapter],
    components: tuple[str, ...],
    sidecars: tuple[str, ...],
    record_property: Callable[[str, object], None],
) -> None:
    """Whatever requests do, each reads its own bytes, and in the end nothing is held."""
    record_property(OPERATIONS, search(RequestMachine, adapter_type, components, sidecars))
