"""LOCK-2, LOCK-3, LOCK-5: device locks on nodes whose data is demoted and loaded back."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    drop_on_device,
    evict_all,
    evicted_with,
    key_of,
    lock,
    longer_prompt,
    put_on_both,
    tier_hits,
)
from .tree_view import device_locks, device_slots

HOST = [Capability.HOST]


def loaded_before_release(driver: Driver, component: str) -> None:
    """Lock a tombstone, load its data back, lock again, release in the order of the locks."""
    drop_on_device(driver, component)
    receipt = driver.lock(best_of_tombstone(driver))
    skipped = device_locks(driver)[component, TOMBSTONE]
    driver.load(key_of(driver, TOMBSTONE))
    assert TOMBSTONE in device_slots(driver, component), f"FLOW-10: {component} of {TOMBSTONE} was loaded"
    second = driver.lock(best_of_tombstone(driver))
    driver.unlock(receipt)
    counts = skipped, device_locks(driver)[component, TOMBSTONE]
    driver.unlock(second)
    assert counts == (0, 1), f"LOCK-3: {component} locks at the tombstone, then by the second lock alone: {counts}"
    assert not device_locks(driver), f"LOCK-3: both are released, {device_locks(driver)} is left"


def best_of_tombstone(driver: Driver) -> object:
    """The node of the first two pages, whose components are valid on the two tiers together."""
    return driver.match(key_of(driver, TOMBSTONE), chunked=True).best_match


@clause("LOCK-3", "LOCK-2", components=(SWA,), needs=HOST)
def test_swa_data_that_was_loaded_under_a_lock_is_not_released_with_it(driver: Driver) -> None:
    loaded_before_release(driver, SWA)


@clause("LOCK-3", "LOCK-2", components=(MAMBA,), needs=HOST)
def test_a_state_that_was_loaded_under_a_lock_is_not_released_with_it(driver: Driver) -> None:
    loaded_before_release(driver, MAMBA)


def loaded_under_a_lock(driver: Driver, component: str) -> None:
    """A lock skipped a component of a device leaf: after a load it can be evicted again, and the leaf stays."""
    drop_on_device(driver, component)
    receipt = driver.lock(best_of_tombstone(driver))
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    driver.load(key_of(driver, TOMBSTONE))
    sizes = driver.adapter.sizes()[component]
    count = sum(map(len, device_slots(driver, component).values()))
    assert sizes.evictable + sizes.protected == count, f"LOCK-4: {count} slots of {component} are cached, sizes {sizes}"
    assert sizes.evictable > 0, f"LOCK-4: no lock holds what was loaded of {component}: {sizes}"
    full = device_slots(driver, FULL)
    evict_all(driver, component)
    left = {name for name in driver.config.components if TOMBSTONE in device_slots(driver, name)}
    expected = set(driver.config.components) - evicted_with(driver, component)
    assert left == expected, f"EVICT-3: {TOMBSTONE} is locked without its {component}: {expected} stays, not {left}"
    assert device_slots(driver, FULL) == full, f"LOCK-5: {full} was locked, the device has {device_slots(driver, FULL)}"
    driver.unlock(receipt)
    evict_all(driver)
    assert not device_slots(driver, FULL), (
        f"LOCK-2: released, all may leave the device, left is {device_slots(driver, FULL).keys()}"
    )
    best_match(driver, longer_prompt(driver))


@clause("LOCK-4", "LOCK-5", "EVICT-3", components=(SWA,), needs=HOST)
def test_swa_data_that_was_loaded_under_a_lock_can_be_evicted_and_the_leaf_stays(driver: Driver) -> None:
    loaded_under_a_lock(driver, SWA)


@clause("LOCK-4", "LOCK-5", "EVICT-3", components=(MAMBA,), needs=HOST)
def test_a_state_that_was_loaded_under_a_lock_can_be_evicted_and_the_leaf_stays(driver: Driver) -> None:
    loaded_under_a_lock(driver, MAMBA)


@clause("LOCK-5", "LOCK-2", needs=HOST)
def test_locked_device_data_stays_when_the_host_loses_its_copy(driver: Driver) -> None:
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    receipt = lock(driver, longer_prompt(driver))
    before, locked = device_slots(driver, FULL), device_locks(driver)
    for component in driver.config.components:
        driver.evict_host(component, driver.config.capacity_tokens[component])
        evict_all(driver, component)
    assert device_slots(driver, FULL) == before, (
        f"LOCK-5: {before} is locked, the device has {device_slots(driver, FULL)}"
    )
    assert device_locks(driver) == locked, f"LOCK-2: locks {locked} became {device_locks(driver)}"
    pages = len(longer_prompt(driver))
    assert tier_hits(driver, longer_prompt(driver)) == (pages, 0), "LOCK-5: all of it is hit on the device"
    driver.unlock(receipt)
