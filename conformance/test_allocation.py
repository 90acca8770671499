"""POOL-3: an allocation gives all slots that were asked for, or None and takes nothing, in one pool or several."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import FULL, MAMBA, SWA, key_of, lock, put
from .tree_view import device_ownership, free_slots


@clause("POOL-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_an_allocation_larger_than_the_pool_is_refused_and_takes_nothing(driver: Driver) -> None:
    put(driver, [1, 2])
    before = _ownership(driver)
    assert driver.allocate(driver.config.capacity_tokens[FULL] + driver.config.page_size) is None, "POOL-3"
    assert _ownership(driver) == before, "POOL-3: an allocation that gave None took or evicted something"


@clause("POOL-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_an_allocation_that_does_not_fit_beside_locked_data_is_refused_and_evicts_nothing(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [3, 4])
    receipt = lock(driver, [1, 2])
    before = _ownership(driver)
    everything = driver.config.capacity_tokens[SWA if SWA in driver.config.components else FULL]
    assert driver.allocate(everything) is None, f"POOL-3: {everything} slots don't fit beside a locked page"
    assert _ownership(driver) == before, "POOL-3: an allocation that gave None took or evicted something"
    driver.unlock(receipt)
    fits = driver.allocate(everything)
    assert fits is not None, f"POOL-3: {everything} slots fit once the lock is gone"
    assert len(fits) == everything, f"POOL-3: {everything} slots asked for, {len(fits)} given"


@clause("POOL-3", bigram=True)
def test_an_empty_allocation_gives_no_slot(driver: Driver) -> None:
    slots = driver.allocate(0)
    assert slots is not None, "POOL-3: expected an empty array for 0 slots, got None"
    assert len(slots) == 0, f"POOL-3: expected an empty array for 0 slots, got {slots.tolist()}"


@clause("POOL-3", needs=[Capability.SWA, Capability.SNAPSHOT], bigram=True)
def test_full_slots_are_returned_when_the_window_pool_is_short(driver: Driver) -> None:
    page, capacity = driver.config.page_size, driver.config.capacity_tokens
    assert capacity[FULL] > capacity[SWA], "the scenario needs more FULL slots than SWA slots"
    held = driver.allocate(capacity[SWA])
    assert held is not None, "POOL-3: the whole SWA pool is free"
    before = _ownership(driver)
    assert driver.allocate(page) is None, "POOL-3: FULL has room, SWA has none"
    assert _ownership(driver) == before, "POOL-3: FULL slots were kept although SWA was short"
    driver.free(held)


@clause("POOL-3", needs=[Capability.SWA, Capability.SNAPSHOT], bigram=True)
def test_window_slots_are_not_taken_when_full_is_short(driver: Driver) -> None:
    page, capacity = driver.config.page_size, driver.config.capacity_tokens
    for tokens in (capacity[SWA], capacity[FULL] - capacity[SWA]):
        slots = driver.allocate(tokens)
        assert slots is not None, f"POOL-3: {tokens} slots of each pool are free"
        driver.release_window(slots)
    before = _ownership(driver)
    assert len(free_slots(driver.snapshot())[SWA]) == capacity[SWA], "POOL-5: all partners were given back"
    assert driver.allocate(page) is None, "POOL-3: SWA has room, FULL has none"
    assert _ownership(driver) == before, "POOL-3: SWA slots were kept although FULL was short"


@clause("POOL-3", needs=[Capability.MAMBA])
def test_states_are_allocated_until_none_is_left(driver: Driver) -> None:
    count = driver.config.capacity_tokens[MAMBA]
    states = [driver.allocate_state() for _ in range(count)]
    assert None not in states, f"POOL-3: {count} states are free, got {states}"
    assert driver.allocate_state() is None, f"POOL-3: all {count} states are held: expected None"
    driver.free_state(states[0] or 0)
    assert driver.allocate_state() == states[0], f"POOL-3: expected state {states[0]}, which was freed"


@clause("POOL-3", needs=[Capability.REQUESTS, Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("cached", [[], [1, 2]], ids=["unknown", "cached"])
def test_a_request_that_does_not_fit_takes_nothing_from_any_pool(driver: Driver, cached: list[int]) -> None:
    if cached:
        put(driver, cached)
    page, room = driver.config.page_size, driver.config.capacity_tokens[FULL]
    before = _ownership(driver)
    assert driver.admit(driver.key([*driver.prompt([1, 2]), *range(room)])) is None, f"POOL-3: {2 * page} over {room}"
    assert _ownership(driver) == before, "POOL-3: a request that was not admitted took something"


@clause("POOL-3", needs=[Capability.REQUESTS, Capability.MAMBA, Capability.SNAPSHOT])
def test_a_request_without_a_state_takes_no_slots(driver: Driver) -> None:
    states = [driver.allocate_state() for _ in range(driver.config.capacity_tokens[MAMBA])]
    before = _ownership(driver)
    assert driver.admit(key_of(driver, [1, 2])) is None, f"POOL-3: all states {states} are held"
    assert _ownership(driver) == before, "POOL-3: a request that was not admitted took something"


def _ownership(driver: Driver) -> tuple[object, ...]:
    return device_ownership(driver.snapshot(), driver.config)
