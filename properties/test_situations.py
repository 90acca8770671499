"""The searches over two tiers meet what they are for, or they would prove nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from hicache.config import ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.types import Component

from .host_machine import HostMachine
from .loading_machine import LoadingMachine
from .situation import Situation
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
"""What a search meets within few examples; the other situations are rarer."""

SEARCH = settings(
    max_examples=80,
    stateful_step_count=30,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
)
"""The same examples each time, whatever the profile."""


@clause(needs=NEEDS)
@pytest.mark.parametrize(
    ("machine", "expected"), [(HostMachine, OF_LOADS), (LoadingMachine, OF_REQUESTS)], ids=["verbs", "requests"]
)
def test_a_search_meets_what_it_is_for(
    adapter_type: type[CacheAdapter], machine: type[TierMachine], expected: set[Situation]
) -> None:
    met = Counter[Situation]()
    bound = {
        "adapter_type": adapter_type,
        "components": (Component.FULL.value,),
        "sidecars": (),
        "operations": [],
        "executor": ExecutorKind.STEPPED,
        "met": met,
    }
    opened: type[TierMachine] = type(machine.__name__, (machine,), bound)
    run_state_machine_as_test(opened, settings=SEARCH)
    missed = sorted(situation.value for situation in expected - met.keys())
    assert not missed, f"{SEARCH.max_examples} examples never came to this: {missed}; they met {dict(met)}"
