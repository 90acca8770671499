"""EVICT-6: tombstones whose last child was removed."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    evict_all,
    hit_pages,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    make_tombstone,
    put,
    recompute,
)
from .tree_view import device_slots, locks, nodes, prefixes


def childless(driver: Driver, component: str) -> Handle:
    """Lock a tombstone and evict everything below it; returns the receipt, the only lock on the node."""
    receipt = driver.lock(make_tombstone(driver, component))
    evict_all(driver)
    kept = device_slots(driver, FULL).keys()
    assert kept == prefixes(*TOMBSTONE), f"EVICT-6: the lock holds {TOMBSTONE} and nothing else, left is {kept}"
    return receipt


def require_empty(driver: Driver, why: str) -> None:
    """The tree is empty."""
    assert not nodes(driver), f"EVICT-6: {why}: expected an empty tree, got {nodes(driver).keys()}"


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_an_swa_tombstone_is_removed_with_its_last_child(driver: Driver) -> None:
    goes_with_its_last_child(driver, SWA)


@clause("EVICT-6", components=(MAMBA,))
def test_a_mamba_tombstone_is_removed_with_its_last_child(driver: Driver) -> None:
    goes_with_its_last_child(driver, MAMBA)


def goes_with_its_last_child(driver: Driver, component: str) -> None:
    """A tombstone with two children stays when the first is removed, and is removed with the second."""
    make_tombstone(driver, component)
    put(driver, [*TOMBSTONE, 50], passed=len(TOMBSTONE))
    assert (*TOMBSTONE, 50) in device_slots(driver, FULL), "INS-1: a second child was cached below the tombstone"
    receipt = lock(driver, longer_prompt(driver))
    evict_all(driver, FULL)
    kept = device_slots(driver, FULL).keys()
    driver.unlock(receipt)
    expected = prefixes(*longer_prompt(driver))
    assert kept == expected, f"EVICT-6: one child is locked, so the tombstone stays: expected {expected}, got {kept}"
    evict_all(driver, FULL)
    require_empty(driver, "the last child was removed, and no match could end at the tombstone")


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_tombstones_are_removed_up_to_the_first_node_with_all_components(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2, 3, 4], passed=3)
    for pages in ([1, 2], [1, 2, 3]):
        driver.match(key_of(driver, pages), chunked=True)
    result = driver.evict(FULL, 1)
    left = nodes(driver).keys()
    assert left == {(1,)}, f"EVICT-6: page 1 holds all, 2 and 3 are tombstones: expected 1 alone to stay, got {left}"
    freed, expected = result.freed[FULL], 3 * driver.config.page_size
    assert freed == expected, f"EVICT-6: a leaf and two tombstones are {expected} slots, {result}"


@clause("EVICT-6", components=(MAMBA,))
def test_nodes_without_a_state_are_removed_up_to_the_first_that_has_one(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2, 3, 4])
    for pages in ([1, 2], [1, 2, 3]):
        driver.match(key_of(driver, pages), chunked=True)
    driver.evict(FULL, 1)
    left = nodes(driver).keys()
    assert left == {(1,)}, f"EVICT-6: a state lies after page 1, none after 2 and 3: expected 1 alone, got {left}"


@clause("EVICT-6", "LOCK-5", components=(SWA,))
def test_a_locked_swa_tombstone_is_removed_with_its_last_lock(driver: Driver) -> None:
    goes_with_its_last_lock(driver, SWA)


@clause("EVICT-6", "LOCK-5", components=(MAMBA,))
def test_a_locked_mamba_tombstone_is_removed_with_its_last_lock(driver: Driver) -> None:
    goes_with_its_last_lock(driver, MAMBA)


def goes_with_its_last_lock(driver: Driver, component: str) -> None:
    """A childless tombstone with two locks is removed when the second lock is released."""
    handle = make_tombstone(driver, component)
    receipts = [driver.lock(handle), driver.lock(handle)]
    evict_all(driver)
    for receipt in receipts:
        assert device_slots(driver, FULL).keys() == prefixes(*TOMBSTONE), "LOCK-5: expected a locked tombstone to stay"
        driver.unlock(receipt)
    require_empty(driver, "the last lock on a childless tombstone is released")


@clause("EVICT-6", "EVICT-3", components=(SWA,))
def test_swa_data_that_a_lock_on_a_leaf_skipped_can_be_evicted(driver: Driver) -> None:
    part_of_a_locked_leaf(driver, SWA)


@clause("EVICT-6", "EVICT-3", components=(MAMBA,))
def test_a_state_that_a_lock_on_a_leaf_skipped_can_be_evicted(driver: Driver) -> None:
    part_of_a_locked_leaf(driver, MAMBA)


def part_of_a_locked_leaf(driver: Driver, component: str) -> None:
    """A leaf whose FULL data is locked, but not this component: the component can be evicted, the leaf stays."""
    receipt = childless(driver, component)
    recompute(driver)
    assert locks(driver)[component, TOMBSTONE] == 0, f"LOCK-3: {component} data came after the lock: {locks(driver)}"
    result = driver.evict(component, 1)
    assert result.freed[component] > 0, f"EVICT-1: the {component} data of the leaf is not locked: {result}"
    assert result.freed[FULL] == 0, f"LOCK-5: the FULL data of the leaf is locked: {result}"
    evict_all(driver)
    assert device_slots(driver, FULL).keys() == prefixes(*TOMBSTONE), (
        "LOCK-5: expected the locked FULL data of the leaf to stay"
    )
    driver.unlock(receipt)
    require_empty(driver, "the leaf was a tombstone when its last lock was released")


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_a_recomputed_leaf_stays_when_its_lock_is_released(driver: Driver) -> None:
    receipt = childless(driver, SWA)
    recompute(driver)
    driver.unlock(receipt)
    assert hit_pages(driver, TOMBSTONE) == len(TOMBSTONE), "EVICT-6: expected a leaf with all components to stay"
    evict_all(driver)
    require_empty(driver, "the leaf is not locked")


@clause("EVICT-1", "EVICT-6", needs=[Capability.SIZES], components=(SWA,), page_sizes=[1, 16])
@pytest.mark.parametrize("asked", [FULL, SWA])
def test_one_eviction_removes_many_tombstones(driver: Driver, asked: str) -> None:
    for first in (10, 20):
        insert_fresh(driver, [first, first + 1, first + 2, first + 3], passed=3)
        for count in (1, 2):
            driver.match(key_of(driver, range(first, first + count)), chunked=True)
    result = driver.evict(asked, driver.config.capacity_tokens[asked])
    freed, expected = result.freed[FULL], 8 * driver.config.page_size
    assert freed == expected, f"EVICT-6: two chains of four pages are {expected} slots, {result}"
    require_empty(driver, "every chain was evictable")
