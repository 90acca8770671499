"""LoadingMachine: sequences in which it once expected more of a cache than the contract asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.types import SHARED, Component, Tier
from properties.loading_machine import LoadingMachine
from properties.situation import Situation
from properties.small_caches import Drawn, fixed_config
from properties.tier_machine import Action

FULL, SWA, MAMBA = (component.value for component in Component)

STEP, FAIL, CLAIM = (Action.STEP, 0, 0), (Action.FAIL, 0, 0), (Action.CLAIM, 0, 0)
EARLY_CLAIM = (Action.CLAIM, 5, 0)
"""An odd place: the request waits for its layers, and is computed before its load has ended."""


class Machine(LoadingMachine):
    """A machine on the reference. `met`: what the last run reached."""

    adapter_type = ReferenceAdapter
    sidecars = ()
    executor = ExecutorKind.STEPPED
    operations: ClassVar[list[int]] = []
    met: ClassVar[Counter[Situation]] = Counter()


class Draws:
    """What a machine draws when it opens: its cache, a number, a prompt before it, and the pages evicted then."""

    def __init__(self, config: CacheConfig, pages: list[int]) -> None:
        self._values = iter((Drawn(config), 0, [(pages, SHARED)], 8))

    def draw(self, strategy: object, label: str | None = None) -> Any:
        return next(self._values)


def run(steps: Callable[[Machine], object], device: dict[str, int], host: dict[str, int], pages: list[int]) -> None:
    """Open a machine whose host alone has a prompt of these pages, and call its rules."""
    config = fixed_config(device, host, WritePolicy.WRITE_THROUGH, events=True)
    opened = type(Machine.__name__, (Machine,), {"components": tuple(device), "caches": lambda _: st.just(config)})
    Machine.met.clear()

    # Within an example of Hypothesis, to which the machine tells what it reached.
    @settings(max_examples=1, database=None)
    @given(st.just(opened))
    def example(machine_type: type[Machine]) -> None:
        machine = machine_type()
        machine.open(data=Draws(config, pages))
        steps(machine)
        machine.teardown()

    example()


def test_a_failure_that_no_eviction_met_fails_no_load() -> None:
    def steps(machine: Machine) -> None:
        machine.admit_again(place=0, tail=1, pressure=False, soon=[])
        machine.evict(tier=Tier.DEVICE, component=FULL, pages=1, failing=1)
        machine.pass_time(actions=[STEP, EARLY_CLAIM, STEP, CLAIM])

    run(steps, {FULL: 8, MAMBA: 2}, {FULL: 1, MAMBA: 1}, [1])
    resumed = Machine.met[Situation.REQUEST_RESUMED]
    assert resumed == 1, "FLOW-10: the eviction waited for no transfer: expected the request to resume with its load"


def test_a_request_that_fits_only_with_its_hit_need_not_resume_without_it() -> None:
    """Its prompt takes four slots of SWA, of which the cache has three; of what was loaded one is enough."""

    def steps(machine: Machine) -> None:
        machine.admit_again(place=0, tail=2, pressure=False, soon=[FAIL, STEP, CLAIM])

    run(steps, {FULL: 4, SWA: 3}, {FULL: 2, SWA: 2}, [1, 1])
    aborted = Machine.met[Situation.REQUEST_ABORTED]
    assert aborted == 1, "REQ-5: it does not fit an empty cache: expected it to wait until it was aborted"
