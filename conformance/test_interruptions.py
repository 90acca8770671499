"""POOL-11: a verb that is interrupted in its middle loses no slot, and verbs of two threads do not mix."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import hicache.testing
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Slots

from .scenario import FULL, MAMBA, REFUSALS, Scenario
from .snapshot_values import free_slots

LINES = 24
"""At so many lines of a verb it is interrupted: the first ones of the code, evenly over all that it runs."""

GUARD_S, PATIENCE_S = 60.0, 0.2
"""Against a hang; and until a second thread is taken to wait for the first."""

TOLD = (*REFUSALS, RuntimeError)
"""What a cache may raise that was interrupted, or is called by two threads at once."""


def own_files(driver: Scenario) -> tuple[str, ...]:
    """Whose lines are not interrupted: the kit, this suite, the adapter."""
    adapter = sys.modules[type(driver.adapter).__module__].__file__
    folders = [
        str(Path(hicache.testing.__file__).parent),
        str(Path(__file__).parent),
        str(Path(threading.__file__).parent),
    ]
    return (*folders, *([adapter] if adapter else []))


class Lines:
    """The lines of a cache that a call runs, in the order of their first run; at one of them something is done."""

    def __init__(
        self, driver: Scenario, at: tuple[str, int] | None = None, call: Callable[[], None] | None = None
    ) -> None:
        self.reached: dict[tuple[str, int], None] = {}
        self._own = own_files(driver)
        self._at = at
        self._call = call

    @contextmanager
    def traced(self) -> Iterator[None]:
        """While this is entered, lines of this thread count."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if name.startswith((*self._own, "<")):
            return None
        if event == "line":
            line = name, frame.f_lineno
            is_first = line not in self.reached
            self.reached[line] = None
            if is_first and line == self._at and self._call is not None:
                self._call()
        return self._trace


def _interrupt() -> None:
    sys.settrace(None)
    raise KeyboardInterrupt


Held = list[Slots]
"""Slots that the caller has before a verb."""


def allocating(driver: Scenario, _: Held) -> Callable[[], Slots | None]:
    driver.put_pages([1, 2])
    driver.put_pages([3, 4])
    return lambda: driver.adapter.allocate(2 * driver.config.page_size)


def freeing(driver: Scenario, held: Held) -> Callable[[], object]:
    held.append(_allocated(driver))
    return lambda: driver.adapter.free(held[0])


def inserting(driver: Scenario, held: Held) -> Callable[[], object]:
    driver.put_pages([1, 2])
    held.append(_allocated(driver))
    state = driver.allocate_state() if driver.has(MAMBA) else None
    driver.write(driver.key_of([1, 3]), held[0], 0)
    key = driver.key_of([1, 3])
    return lambda: driver.adapter.insert(key, held[0], shared=0, window_start=0, state=state, priority=0)


def evicting(driver: Scenario, _: Held) -> Callable[[], object]:
    driver.put_pages([1, 2])
    driver.put_pages([1, 3])
    return lambda: driver.adapter.evict(FULL, 3 * driver.config.page_size)


VERBS: Mapping[str, Callable[[Scenario, Held], Callable[[], object]]] = {
    make.__name__: make for make in (allocating, freeing, inserting, evicting)
}


def _allocated(driver: Scenario) -> Slots:
    slots = driver.allocate(2 * driver.config.page_size)
    assert slots is not None, "POOL-3: there is room for two pages"
    return slots


def lines_of(driver: Scenario, prepare: Callable[[Scenario, Held], Callable[[], object]]) -> Sequence[tuple[str, int]]:
    """The lines that a verb runs in another cache of the same configuration. Skips without any."""
    other = driver.open_variant()
    call, lines = prepare(other, []), Lines(other)
    with lines.traced():
        call()
    other.adapter.close()
    reached = list(lines.reached)
    if not reached:
        pytest.skip("no line of Python runs in this verb: nothing can be interrupted at a line")
    return reached


@clause("POOL-11", needs=[Capability.SNAPSHOT, Capability.RESET, Capability.REFUSALS], page_sizes=[16])
@pytest.mark.parametrize("prepare", VERBS.values(), ids=VERBS)
def test_no_slot_is_lost_by_an_interruption(
    driver: Scenario, prepare: Callable[[Scenario, Held], Callable[[], object]]
) -> None:
    pool = free_slots(driver.snapshot())
    lines = lines_of(driver, prepare)
    for line in lines[:: -(-len(lines) // LINES)]:
        one, held = driver.open_variant(), list[Slots]()
        call = prepare(one, held)
        with pytest.raises(KeyboardInterrupt), Lines(one, line, _interrupt).traced():
            call()
        one.adapter.reset()
        for slots in held:
            # They are the caller's still, or the verb was done, or the reset took all that callers had.
            _free_if_held(one, slots)
        _free_states(one)
        left = free_slots(one.snapshot())
        assert left == pool, f"POOL-11: interrupted at {line}, after a reset {_missing(pool, left)} are not free"
        one.adapter.close()


def _free_if_held(driver: Scenario, slots: Slots) -> None:
    for first in range(0, len(slots), driver.config.page_size):
        try:
            driver.adapter.free(slots[first : first + driver.config.page_size])
        except TOLD:
            continue


def _free_states(driver: Scenario) -> None:
    for state in driver.ledger.held().get(MAMBA, ()):
        try:
            driver.adapter.free_state(int(state))
        except TOLD:
            continue


def _missing(pool: Mapping[str, set[int]], left: Mapping[str, set[int]]) -> dict[str, list[int]]:
    return {name: sorted(slots - left[name]) for name, slots in pool.items()}


@clause("POOL-11", needs=[Capability.SNAPSHOT, Capability.RESET, Capability.REFUSALS], page_sizes=[16])
def test_allocations_of_two_threads_do_not_mix(driver: Scenario) -> None:
    pool = free_slots(driver.snapshot())
    for line in lines_of(driver, allocating):
        one = driver.open_variant()
        given = _overlapping(one, allocating(one, []), line)
        slots = [slot for own in given for slot in own.tolist()]
        assert len(set(slots)) == len(slots), f"POOL-11: paused at {line}, two threads were given {sorted(slots)}"
        for own in given:
            one.adapter.free(own)
        one.adapter.reset()
        left = free_slots(one.snapshot())
        assert left == pool, f"POOL-11: paused at {line}, after a reset {_missing(pool, left)} are not free"
        one.adapter.close()


def _overlapping(driver: Scenario, call: Callable[[], Slots | None], line: tuple[str, int]) -> list[Slots]:
    """What two threads are given, of which the second calls while the first is at a line of the verb."""
    entered, go_on, given = threading.Event(), threading.Event(), list[Slots]()

    def pause() -> None:
        entered.set()
        go_on.wait(GUARD_S)

    def first() -> None:
        with Lines(driver, line, pause).traced():
            keep(call())

    def second() -> None:
        try:
            keep(driver.adapter.allocate(driver.config.page_size))
        except TOLD:
            return

    def keep(slots: Slots | None) -> None:
        if slots is not None:
            given.append(slots)

    threads = [threading.Thread(target=work) for work in (first, second)]
    threads[0].start()
    assert entered.wait(GUARD_S), f"the verb comes by {line}, as it did in another cache"
    threads[1].start()
    # A cache may let the second thread wait for the first one.
    threads[1].join(PATIENCE_S)
    go_on.set()
    for thread in threads:
        thread.join(GUARD_S)
    return given
