"""LoadingMachine: a failure that an eviction did not meet fails no load that a request waits for."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.types import SHARED, Component, Tier
from properties.loading_machine import LoadingMachine
from properties.situation import Situation
from properties.small_caches import fixed_config
from properties.tier_machine import Action

FULL, MAMBA = Component.FULL.value, Component.MAMBA.value

CONFIG = fixed_config({FULL: 8, MAMBA: 2}, {FULL: 1, MAMBA: 1}, WritePolicy.WRITE_THROUGH, events=True)

EARLY_CLAIM = (Action.CLAIM, 5, 0)
"""An odd place: the request waits for its layers, and is computed before its load has ended."""


class Machine(LoadingMachine):
    """A machine on one configuration."""

    adapter_type = ReferenceAdapter
    components = (FULL, MAMBA)
    sidecars = ()
    executor = ExecutorKind.STEPPED
    operations: ClassVar[list[int]] = []
    met: ClassVar[Counter[Situation]] = Counter()

    def caches(self) -> st.SearchStrategy[CacheConfig]:
        return st.just(CONFIG)


class Draws:
    """The cache, the prompt that came before, and how many of its pages were evicted from the device since."""

    def __init__(self) -> None:
        self._values = iter((CONFIG, [([1], SHARED)], 8))

    def draw(self, strategy: object, label: str | None = None) -> Any:
        return next(self._values)


# Within an example, as the machine records what it reached for Hypothesis.
@settings(max_examples=1)
@given(st.just(Action.STEP))
def test_a_failure_that_no_eviction_met_fails_no_load(step: Action) -> None:
    machine = Machine()
    machine.open(data=Draws())
    machine.admit_again(place=0, tail=1, pressure=False, soon=[])
    machine.evict(tier=Tier.DEVICE, component=FULL, pages=1, failing=1)
    machine.pass_time(actions=[(step, 0, 0), EARLY_CLAIM, (step, 0, 0), (Action.CLAIM, 0, 0)])
    resumed = machine.met[Situation.REQUEST_RESUMED]
    machine.teardown()
    assert resumed == 1, "FLOW-10: the eviction waited for no transfer: expected the request to resume with its load"
