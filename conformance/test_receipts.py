"""LOCK-2, LOCK-3: a release undoes exactly what its lock did, whatever happened in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    evict_all,
    find,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    make_tombstone,
    put,
    recompute,
)
from .tree_view import locks

SHORT = (1, 2, 3)
LONG = (1, 2, 3, 4, 5, 6)


def split(driver: Driver) -> None:
    """Matches end inside the locked nodes, and split them."""
    for pages in (LONG[:2], LONG[:5], LONG[:4], LONG[:1]):
        driver.match(key_of(driver, pages))


def branch(driver: Driver) -> None:
    """Diverging prompts are cached."""
    for pages in ([*SHORT[:2], 7], [*LONG[:4], 7]):
        put(driver, pages)


def grow(driver: Driver) -> None:
    """A longer prompt is cached."""
    put(driver, [*LONG, 7, 8])


def evict(driver: Driver) -> None:
    """Everything that is not locked is evicted."""
    put(driver, [9])
    evict_all(driver)


def duplicate(driver: Driver) -> None:
    """The same prompts are inserted again from other slots, with and without SWA data of the first pages."""
    insert_fresh(driver, LONG)
    insert_fresh(driver, LONG, passed=2)


def share(driver: Driver) -> None:
    """Other receipts are taken and released."""
    for pages in (LONG, SHORT):
        driver.unlock(lock(driver, pages))


def everything(driver: Driver) -> None:
    """All changes, one after the other."""
    for disturb in (grow, split, evict, duplicate, share, branch, evict):
        disturb(driver)


Disturb = Callable[[Driver], None]


@clause("LOCK-2", page_sizes=[1, 16])
@pytest.mark.parametrize("disturb", [split, branch, grow, evict, duplicate, share], ids=lambda each: each.__name__)
def test_a_release_undoes_only_its_own_lock(driver: Driver, disturb: Disturb) -> None:
    lock_disturb_release(driver, disturb)


@clause("LOCK-2", bigram=True)
def test_a_release_undoes_its_lock_whatever_happened(driver: Driver) -> None:
    lock_disturb_release(driver, everything)


def lock_disturb_release(driver: Driver, disturb: Disturb) -> None:
    """Take and release two locks, with a change in between that must not change any lock."""
    put(driver, SHORT)
    put(driver, LONG)
    long = lock(driver, LONG)
    with_long = locks(driver)
    short = lock(driver, SHORT)
    with_both = locks(driver)
    disturb(driver)
    assert locks(driver) == with_both, f"LOCK-2: {disturb.__name__} changed locks from {with_both} to {locks(driver)}"
    driver.unlock(long)
    expected, found = with_both - with_long, locks(driver)
    assert found == expected, f"LOCK-2: after {disturb.__name__} and a release expected {expected}, got {found}"
    driver.unlock(short)
    assert not locks(driver), f"LOCK-2: after {disturb.__name__} and both releases {locks(driver)} is left"


@clause("LOCK-2", needs=[Capability.SIZES], bigram=True)
def test_locks_taken_and_released_in_any_order_leave_nothing(driver: Driver) -> None:
    put(driver, SHORT)
    put(driver, LONG)
    first = [lock(driver, LONG), lock(driver, SHORT)]
    split(driver)
    second = [lock(driver, LONG), lock(driver, SHORT)]
    for receipt in (first[1], second[0]):
        driver.unlock(receipt)
    branch(driver)
    for receipt in (first[0], second[1]):
        driver.unlock(receipt)
    protected = {name: sizes.protected for name, sizes in driver.adapter.sizes().items()}
    assert not any(protected.values()), f"LOCK-2: nothing is locked, protected are {protected}"


@clause("LOCK-2", components=(SWA,))
def test_a_temporary_lock_leaves_the_window_of_another_request(driver: Driver) -> None:
    put(driver, SHORT)
    put(driver, LONG)
    put(driver, [*LONG, 7])
    receipt = lock(driver, SHORT)
    before = locks(driver)
    for pages in (LONG, [*LONG, 7]):
        driver.unlock(lock(driver, pages))
        assert locks(driver) == before, f"LOCK-2: a temporary lock on {pages} changed {before} to {locks(driver)}"
    driver.unlock(receipt)


def restored_before_release(driver: Driver, component: str) -> None:
    """Lock a tombstone, recompute its data, lock again, release in the order of the locks."""
    handle = make_tombstone(driver, component)
    receipt = driver.lock(handle)
    assert locks(driver)[FULL, TOMBSTONE] == 1, f"LOCK-1: FULL data of {TOMBSTONE} is there and was to be locked"
    skipped = locks(driver)[component, TOMBSTONE]
    recompute(driver)
    second = driver.lock(handle)
    driver.unlock(receipt)
    counts = skipped, locks(driver)[component, TOMBSTONE]
    driver.unlock(second)
    assert counts == (0, 1), f"LOCK-3: {component} locks at the tombstone, then by the second lock alone: {counts}"
    assert not locks(driver), f"LOCK-3: both are released, {locks(driver)} is left"


@clause("LOCK-3", components=(SWA,), bigram=True)
def test_swa_data_that_a_lock_skipped_stays_unlocked(driver: Driver) -> None:
    restored_before_release(driver, SWA)


@clause("LOCK-3", components=(MAMBA,))
def test_a_state_that_a_lock_skipped_stays_unlocked(driver: Driver) -> None:
    restored_before_release(driver, MAMBA)


@clause("LOCK-3", "LOCK-2", components=(SWA,))
def test_a_window_lock_that_a_tombstone_shortened_stays_short(driver: Driver) -> None:
    put(driver, longer_prompt(driver)[:3])
    behind = find(driver, longer_prompt(driver)[:3])
    make_tombstone(driver, SWA)
    receipt = driver.lock(behind)
    before = locks(driver)
    assert before[SWA, TOMBSTONE] == 0, f"LOCK-1: a tombstone has no SWA data to lock: expected 0, got {before}"
    recompute(driver)
    other = driver.lock(behind)
    driver.unlock(receipt)
    left = locks(driver)
    driver.unlock(other)
    assert left[SWA, (1, 2, 3)] == 1, f"LOCK-3: the second lock holds page 3 once: expected 1, got {left}"
    assert not locks(driver), f"LOCK-3: all is released, {locks(driver)} is left"
