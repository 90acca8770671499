"""A prefix that lost a component's data while a longer prompt that goes through it is cached as a whole."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver
from hicache.types import Handle

from .trees import held
from .verbs import FULL, MAMBA, SWA, evict_all, find, lock, offer, put, window_pages

TOMBSTONE = (1, 2)
"""The prefix that `make_tombstone` leaves without data."""


def longer_prompt(driver: Driver) -> list[int]:
    """The prompt through the tombstone: past it lies a whole window, so that it needs no data there."""
    return [*TOMBSTONE, *range(3, 3 + max(1, window_pages(driver.config)))]


def make_tombstone(driver: Driver, component: str) -> Handle:
    """Cache the longer prompt, and let the first two pages lose the component; returns their node."""
    put(driver, TOMBSTONE)
    handle = find(driver, TOMBSTONE)
    put(driver, longer_prompt(driver))
    receipt = lock(driver, longer_prompt(driver))
    evict_all(driver, component)
    driver.unlock(receipt)
    assert TOMBSTONE not in held(driver, component), f"EVICT-3: {component} of {TOMBSTONE} was unlocked, and is there"
    return handle


def lower(driver: Driver, component: str) -> set[str]:
    """What a tombstone of a component lacks: the component, and those of lower rank."""
    ranks = [FULL, SWA, MAMBA]
    return set(ranks[ranks.index(component) :]) & set(driver.config.components)


def revive(driver: Driver) -> None:
    """Another request computes the prefix anew and brings all data with it."""
    offer(driver, TOMBSTONE)
    find(driver, TOMBSTONE)
