"""Tombstones: a prefix without a component's data below which a longer prompt is cached in full."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver
from hicache.types import Handle

from .scenario import FULL, MAMBA, SWA, evict_all, find, insert_fresh, lock, put, put_on_both, window_pages
from .tree_view import device_slots

TOMBSTONE = (1, 2)
"""The prefix that lacks the component."""


def longer_prompt(driver: Driver) -> list[int]:
    """A prompt that continues the tombstone by a whole window, so that it needs no SWA data at the tombstone."""
    return [*TOMBSTONE, *range(3, 3 + max(1, window_pages(driver.config)))]


def make_tombstone(driver: Driver, component: str) -> Handle:
    """Cache the longer prompt, and evict the component of the first two pages; returns their node."""
    put(driver, TOMBSTONE)
    handle = find(driver, TOMBSTONE)
    put(driver, longer_prompt(driver))
    _evict_below_lock(driver, component)
    return handle


def drop_on_device(driver: Driver, component: str) -> None:
    """Cache the longer prompt on both tiers, and evict a component of its first two pages from the device."""
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    _evict_below_lock(driver, component)


def evicted_with(driver: Driver, component: str) -> set[str]:
    """The components that an inner node loses with this one: itself, and those after it."""
    ranks = [FULL, SWA, MAMBA]
    return set(ranks[ranks.index(component) :]) & set(driver.config.components)


def recompute(driver: Driver) -> None:
    """Another request computes the prefix again, and inserts all of its data."""
    insert_fresh(driver, TOMBSTONE)
    find(driver, TOMBSTONE)


def _evict_below_lock(driver: Driver, component: str) -> None:
    """Lock the longer prompt while the component is evicted, so that the prefix alone loses it."""
    receipt = lock(driver, longer_prompt(driver))
    evict_all(driver, component)
    driver.unlock(receipt)
    assert TOMBSTONE not in device_slots(driver, component), (
        f"EVICT-3: {component} of {TOMBSTONE} was not locked: expected it to leave the device"
    )
