"""The searches over two tiers reach the situations that they are meant to test."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from hicache.config import ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.types import Component

from .fixed_config import fixed_config
from .host_machine import HostMachine
from .loading_machine import LoadingMachine
from .situation import Situation
from .situation_scripts import SCRIPTS
from .tier_machine import TierMachine

NEEDS = (
    *(Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES, Capability.EVENTS),
    *(Capability.REQUESTS, Capability.HOST, Capability.STEPPED),
)

OF_LOADS = {
    *(Situation.LOAD, Situation.LOAD_SHARED, Situation.LOAD_REFUSED, Situation.LOAD_DELIVERED),
    *(Situation.LOAD_ABANDONED, Situation.LAYERS_READ, Situation.RESET),
}
OF_REQUESTS = {Situation.REQUEST_RESUMED, Situation.REQUEST_ABORTED}
"""What a search reaches by itself within few examples. For every situation there is a script as well."""

SEARCH = settings(
    max_examples=80,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
)
"""The same examples each time, whatever the profile."""

PAGES = 4
"""Pages of each component's pool on each tier, where a search continues from a script."""


@clause(needs=NEEDS)
@pytest.mark.parametrize(
    ("machine", "expected"), [(HostMachine, OF_LOADS), (LoadingMachine, OF_REQUESTS)], ids=["verbs", "requests"]
)
def test_a_search_meets_its_situations(
    adapter_type: type[CacheAdapter], machine: type[TierMachine], expected: set[Situation]
) -> None:
    opened = bind(machine, adapter_type, (Component.FULL.value,))
    run_state_machine_as_test(opened, settings=SEARCH)
    missed = sorted(situation.value for situation in expected - opened.met.keys())
    assert not missed, f"{SEARCH.max_examples} examples did not reach {missed}; they reached {dict(opened.met)}"


@clause(needs=NEEDS)
@pytest.mark.parametrize("situation", SCRIPTS, ids=lambda situation: situation.name.lower())
def test_a_search_continues_from_each_situation(adapter_type: type[CacheAdapter], situation: Situation) -> None:
    script = SCRIPTS[situation]
    if Component.MAMBA in script.components and Capability.MAMBA not in adapter_type.capabilities:
        pytest.skip(f"{adapter_type.__name__} does not declare MAMBA: {Capability.MAMBA.value}")
    pages = dict.fromkeys(script.components, PAGES)

    def run_script(machine: TierMachine, data: st.DataObject) -> None:
        TierMachine.opened(machine, data)
        script.steps(machine)
        assert situation in machine.met, f"{situation.value}: expected the script to reach it, got {dict(machine.met)}"

    caches = st.just(fixed_config(pages, pages, script.write_policy, events=True))
    machine = bind(script.machine, adapter_type, script.components, opened=run_script, caches=lambda _: caches)
    run_state_machine_as_test(machine, settings=settings(SEARCH, max_examples=3))


def bind(
    machine: type[TierMachine], adapter_type: type[CacheAdapter], components: tuple[str, ...], **more: object
) -> type[TierMachine]:
    """The machine bound to a cache of these components. `more`: further class attributes."""
    bound = {"adapter_type": adapter_type, "components": components, "sidecars": (), "operations": []}
    bound |= {"executor": ExecutorKind.STEPPED, "met": Counter[Situation]()}
    return type(machine.__name__, (machine,), bound | more)
