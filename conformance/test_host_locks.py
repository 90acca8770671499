"""LOCK-7: what a host lock holds of each component, and what its release undoes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import refused
from .scenario import (
    FORWARD,
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    evict_all,
    evict_host,
    evict_inner_from_host,
    find,
    host_variant,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    put,
    put_and_back_up,
    put_on_both,
    put_on_host,
    tier_hits,
    unit,
    window_pages,
)
from .tree_view import Pages, device_locks, device_slots, host_locks, host_slots, nodes, prefixes

SHORT = (1, 2, 3)


# LOCK-7, LOCK-5: what a host lock holds of each component, and what it does not hold.


Scene = Callable[..., None]
SCENES = pytest.mark.parametrize("scene", [put_on_both, put_on_host], ids=["on both tiers", "on the host"])


@clause("LOCK-7")
@SCENES
def test_a_host_lock_holds_one_node_the_window_and_one_state(driver: Driver, scene: Scene) -> None:
    pages = tuple(range(1, window_pages(driver.config) + 4))
    scene(driver, pages[:2], pages)
    receipt = driver.lock_host(best_match(driver, pages))
    first = nodes(driver)[pages].start // driver.config.page_size
    window = prefixes(*pages) - prefixes(*pages[: -window_pages(driver.config) or None])
    holds = {FULL: prefixes(*pages) - prefixes(*pages[:first]), SWA: window, MAMBA: {pages}}
    expected = {(component, prefix): 1 for component in driver.config.components for prefix in holds[component]}
    found = host_locks(driver)
    driver.unlock_host(receipt)
    assert found == expected, f"LOCK-7: a host lock on {pages} must hold {expected}, it holds {found}"
    assert not host_locks(driver), f"LOCK-7: released, it still holds {host_locks(driver)}"


@clause("LOCK-7")
def test_locks_of_the_two_tiers_are_counted_separately(driver: Driver) -> None:
    put_on_both(driver, SHORT)
    on_device = [lock(driver, SHORT), lock(driver, SHORT)]
    with_device = device_locks(driver), host_locks(driver)
    on_host = driver.lock_host(best_match(driver, SHORT))
    with_both = device_locks(driver), host_locks(driver)
    assert not with_device[1], f"LOCK-7: a lock on the device locked {with_device[1]} on the host"
    assert with_both[0] == with_device[0], f"LOCK-7: a lock on the host changed {with_device[0]} to {with_both[0]}"
    for receipt in on_device:
        driver.unlock(receipt)
    left = device_locks(driver), host_locks(driver)
    assert left == ({}, with_both[1]), f"LOCK-7: of {with_both} the device's were released, {left} is left"
    driver.unlock_host(on_host)


@clause("LOCK-7", "LOCK-4", needs=[Capability.SIZES])
def test_the_first_host_lock_and_the_last_release_change_the_sizes(driver: Driver) -> None:
    put_on_both(driver, SHORT)
    sizes = [_host_sizes(driver)]
    receipts = []
    for _ in range(2):
        receipts.append(driver.lock_host(best_match(driver, SHORT)))
        sizes.append(_host_sizes(driver))
    for receipt in receipts:
        driver.unlock_host(receipt)
        sizes.append(_host_sizes(driver))
    unlocked, locked = sizes[0], sizes[1]
    assert sizes == [unlocked, locked, locked, locked, unlocked], f"LOCK-4: host sizes over two locks: {sizes}"
    moved = {name: locked[name][1] - unlocked[name][1] for name in unlocked}
    assert all(moved.values()), f"LOCK-4: each component protects something of {SHORT} on the host, got {moved}"


@clause("LOCK-7", "LOCK-5", "EVICT-8")
@SCENES
def test_locked_host_data_stays_on_the_host(driver: Driver, scene: Scene) -> None:
    scene(driver, SHORT)
    receipt = driver.lock_host(best_match(driver, SHORT))
    before = _locked_slots(driver)
    for component in driver.config.components:
        evict_host(driver, component)
        assert _locked_slots(driver) == before, f"LOCK-5: evicting {component} on the host changed what is locked there"
    driver.unlock_host(receipt)
    evict_host(driver, FULL)
    assert not host_slots(driver, FULL), f"LOCK-7: released, all may go, left is {host_slots(driver, FULL).keys()}"


@clause("LOCK-7", "EVICT-8")
def test_a_host_lock_removes_a_node_from_the_eviction_order_until_its_release(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1], [2], [3])
        receipt = driver.lock_host(best_match(driver, [1]))
        for page in (2, 3):
            driver.match(key_of(driver, [page]), chunked=True)
        order = []
        for _ in range(2):
            driver.evict_host(component, unit(driver, component))
            order.append(sorted(host_slots(driver, FULL)))
            if len(order) == 1:
                driver.unlock_host(receipt)
        expected = [[(1,), (3,)], [(3,)]]
        assert order == expected, (
            f"LOCK-7: {component}: 1 is the oldest and locked, so 2 goes and then 1; left: {order}"
        )


@clause("LOCK-7", "EVICT-7")
def test_a_host_lock_does_not_lock_device_data(driver: Driver) -> None:
    put_on_both(driver, SHORT)
    receipt = driver.lock_host(best_match(driver, SHORT))
    evict_all(driver)
    assert not device_slots(driver, FULL), (
        f"LOCK-7: the device is not locked, and {device_slots(driver, FULL).keys()} stayed there"
    )
    assert tier_hits(driver, SHORT) == (0, 3), (
        f"LOCK-7: all of {SHORT} is on the host: expected (0, 3), got {tier_hits(driver, SHORT)}"
    )
    driver.unlock_host(receipt)


@clause("LOCK-7", "FLOW-5", executors=[ExecutorKind.STEPPED])
def test_a_host_lock_keeps_a_node_without_a_host_copy(driver: Driver) -> None:
    put(driver, SHORT)
    receipt = driver.lock_host(find(driver, SHORT))
    driver.step()
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    assert not host_slots(driver, FULL), f"FLOW-3: no copy arrived, yet {host_slots(driver, FULL)} is on the host"
    for component in driver.config.components:
        driver.evict(component, driver.config.capacity_tokens[component])
        evict_host(driver, component)
    assert SHORT in nodes(driver), (
        f"LOCK-7: {SHORT} is locked on the host and was removed; left is {nodes(driver).keys()}"
    )
    find(driver, SHORT)
    driver.unlock_host(receipt)
    driver.drain()
    evict_all(driver)
    assert not device_slots(driver, FULL), (
        f"LOCK-7: released, all may leave the device, left is {device_slots(driver, FULL).keys()}"
    )


@clause("LOCK-7")
def test_a_removed_node_cannot_be_locked_on_the_host(driver: Driver) -> None:
    put_on_host(driver, SHORT)
    handle = best_match(driver, SHORT)
    evict_host(driver, FULL)
    with refused(driver, "LOCK-7", "a host lock on a node that is gone"):
        driver.adapter.lock_host(handle)


@clause("LOCK-1", "FLOW-5")
def test_a_node_on_the_host_alone_cannot_be_locked_on_the_device(driver: Driver) -> None:
    put_on_host(driver, SHORT)
    handle = best_match(driver, SHORT)
    with refused(driver, "LOCK-1", "a device lock on a node that is on the host alone"):
        driver.adapter.lock(handle)


def _host_sizes(driver: Driver) -> dict[str, tuple[int, int]]:
    return {name: (sizes.evictable, sizes.protected) for name, sizes in driver.adapter.host_sizes().items()}


def _locked_slots(driver: Driver) -> dict[tuple[str, Pages], tuple[int, ...]]:
    """The host slots of each page, and the state, under a host lock."""
    slots = {component: host_slots(driver, component) for component in driver.config.components}
    return {(component, prefix): slots[component][prefix] for component, prefix in host_locks(driver)}


# LOCK-7, LOCK-2, LOCK-3, LOCK-6: receipts of host locks, and what releasing them undoes.

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
    evict_inner_from_host(driver, component)
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


@clause("LOCK-3", "LOCK-7", components=(SWA,), write_policies=FORWARD)
def test_swa_data_that_a_host_lock_skipped_stays_unlocked(driver: Driver) -> None:
    revived_before_release(driver, SWA)


@clause("LOCK-3", "LOCK-7", components=(MAMBA,), write_policies=FORWARD)
def test_a_state_that_a_host_lock_skipped_stays_unlocked(driver: Driver) -> None:
    revived_before_release(driver, MAMBA)
