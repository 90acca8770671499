"""LOCK-7, LOCK-2, LOCK-3, LOCK-6: receipts of host locks, and what releasing them undoes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import WritePolicy
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import refused
from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    evict_all,
    evict_host,
    host_variant,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    put,
    put_and_back_up,
    put_on_both,
)
from .tree_view import device_locks, host_locks, host_slots

SHORT = (1, 2, 3)
LONG = (1, 2, 3, 4, 5, 6)

Disturb = Callable[[Driver], None]


def split(driver: Driver) -> None:
    """Matches end inside the locked nodes, and split them."""
    for pages in (LONG[:2], LONG[:5], LONG[:4], LONG[:1]):
        driver.match(key_of(driver, pages))


def branch(driver: Driver) -> None:
    """Diverging prompts are cached and backed up."""
    for pages in ([*SHORT[:2], 7], [*LONG[:4], 7]):
        put(driver, pages)
    driver.drain()


def demote(driver: Driver) -> None:
    """Everything is evicted from the device."""
    evict_all(driver)


def come_back(driver: Driver) -> None:
    """Everything is evicted from the device, and the prompts are loaded."""
    evict_all(driver)
    for pages in (SHORT, LONG):
        driver.load(key_of(driver, pages))


def compute_again(driver: Driver) -> None:
    """Everything is evicted from the device, and the prompts are computed again."""
    evict_all(driver)
    for pages in (LONG, SHORT):
        insert_fresh(driver, pages)
    driver.drain()


def press(driver: Driver) -> None:
    """Everything evictable is evicted from the host."""
    evict_host(driver)


def share(driver: Driver) -> None:
    """Other receipts are taken and released."""
    for pages in (LONG, SHORT):
        driver.unlock_host(driver.lock_host(best_match(driver, pages)))


def everything(driver: Driver) -> None:
    """All changes, one after the other."""
    for disturb in (branch, split, demote, press, share, come_back, press, compute_again, share):
        disturb(driver)


@clause("LOCK-7", "LOCK-2", page_sizes=[16])
@pytest.mark.parametrize(
    "disturb",
    [split, branch, demote, come_back, compute_again, press, share, everything],
    ids=lambda each: each.__name__,
)
def test_a_release_undoes_only_its_own_host_lock(driver: Driver, disturb: Disturb) -> None:
    put_on_both(driver, SHORT, LONG)
    long = driver.lock_host(best_match(driver, LONG))
    with_long = host_locks(driver)
    short = driver.lock_host(best_match(driver, SHORT))
    with_both = host_locks(driver)
    disturb(driver)
    assert host_locks(driver) == with_both, f"LOCK-2: {disturb.__name__} made {with_both} {host_locks(driver)}"
    driver.unlock_host(long)
    expected, found = with_both - with_long, host_locks(driver)
    assert found == expected, f"LOCK-2: after {disturb.__name__} and a release expected {expected}, got {found}"
    driver.unlock_host(short)
    left = host_locks(driver), device_locks(driver)
    assert left == ({}, {}), f"LOCK-2: after {disturb.__name__} and both releases {left} is left"


@clause("LOCK-7", "INS-8")
def test_a_host_lock_that_a_split_crosses_holds_both_parts(driver: Driver) -> None:
    put_on_both(driver, LONG)
    receipt = driver.lock_host(best_match(driver, LONG))
    before = host_locks(driver)
    split(driver)
    assert host_locks(driver) == before, f"INS-8: host locks went from {before} to {host_locks(driver)} in a split"
    demote(driver)
    press(driver)
    kept = {prefix for component, prefix in before if component == FULL} - host_slots(driver, FULL).keys()
    assert not kept, f"LOCK-7: {kept} was locked before a split, and left the host"
    driver.unlock_host(receipt)
    assert not host_locks(driver), f"INS-8: the receipt that crosses the split left {host_locks(driver)}"


@clause("LOCK-7", "LOCK-6", page_sizes=[16])
def test_releasing_a_host_lock_twice_is_refused(driver: Driver) -> None:
    put_on_both(driver, SHORT)
    first, second = driver.lock_host(best_match(driver, SHORT)), driver.lock_host(best_match(driver, SHORT))
    driver.unlock_host(first)
    with refused(driver, "LOCK-6", "a second release of a host lock, while there is another"):
        driver.adapter.unlock_host(first)
    driver.unlock_host(second)
    for receipt in (first, second):
        with refused(driver, "LOCK-6", "a second release of a host lock, when nothing is locked"):
            driver.adapter.unlock_host(receipt)


@clause("LOCK-7", "LOCK-6", page_sizes=[16])
def test_a_receipt_of_the_other_tier_is_refused(driver: Driver) -> None:
    put_on_both(driver, SHORT)
    on_host, on_device = driver.lock_host(best_match(driver, SHORT)), lock(driver, SHORT)
    with refused(driver, "LOCK-6", "a device receipt, given back as one of the host"):
        driver.adapter.unlock_host(on_device)
    with refused(driver, "LOCK-6", "a host receipt, given back as one of the device"):
        driver.adapter.unlock(on_host)
    driver.unlock(on_device)
    driver.unlock_host(on_host)


@clause("LOCK-7", "LOCK-6", page_sizes=[16])
def test_a_host_receipt_of_another_cache_is_refused(driver: Driver) -> None:
    with host_variant(driver) as other:
        for each in (driver, other):
            put_on_both(each, SHORT)
        own, foreign = driver.lock_host(best_match(driver, SHORT)), other.lock_host(best_match(other, SHORT))
        with refused(driver, "LOCK-6", "the host receipt of another cache"):
            driver.adapter.unlock_host(foreign)
        driver.unlock_host(own)
        other.unlock_host(foreign)


@clause("LOCK-2", "LOCK-7", components=(SWA,))
def test_a_temporary_host_lock_leaves_the_window_of_another_lock(driver: Driver) -> None:
    put_on_both(driver, SHORT, LONG)
    receipt = driver.lock_host(best_match(driver, SHORT))
    before = host_locks(driver)
    for pages in (LONG, LONG, SHORT):
        driver.unlock_host(driver.lock_host(best_match(driver, pages)))
        assert host_locks(driver) == before, f"LOCK-2: a temporary lock on {pages} made {before} {host_locks(driver)}"
    driver.unlock_host(receipt)


def revived_before_release(driver: Driver, component: str) -> None:
    """Lock a node that lacks a component on the host, back it up, lock again, release in the order of the locks."""
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    protected = driver.lock_host(best_match(driver, longer_prompt(driver)))
    evict_host(driver, component)
    driver.unlock_host(protected)
    assert TOMBSTONE not in host_slots(driver, component), f"EVICT-8: {component} of {TOMBSTONE} was to leave the host"
    receipt = driver.lock_host(best_match(driver, TOMBSTONE))
    skipped = host_locks(driver)[component, TOMBSTONE]
    put_and_back_up(driver, TOMBSTONE)
    assert TOMBSTONE in host_slots(driver, component), (
        f"HOST-1: {component} of {TOMBSTONE} was used, and is not backed up"
    )
    second = driver.lock_host(best_match(driver, TOMBSTONE))
    driver.unlock_host(receipt)
    counts = skipped, host_locks(driver)[component, TOMBSTONE]
    driver.unlock_host(second)
    assert counts == (0, 1), f"LOCK-3: {component} host locks at the gap, then by the second lock alone: {counts}"
    assert not host_locks(driver), f"LOCK-3: both are released, {host_locks(driver)} is left"


COPYING = (WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE)


@clause("LOCK-3", "LOCK-7", components=(SWA,), write_policies=COPYING)
def test_swa_data_that_a_host_lock_skipped_stays_unlocked(driver: Driver) -> None:
    revived_before_release(driver, SWA)


@clause("LOCK-3", "LOCK-7", components=(MAMBA,), write_policies=COPYING)
def test_a_state_that_a_host_lock_skipped_stays_unlocked(driver: Driver) -> None:
    revived_before_release(driver, MAMBA)
