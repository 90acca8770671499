"""LOCK-7: what a host lock holds of each component, and what its release undoes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause

from .scenario import FORWARD, FULL, MAMBA, PLACEMENTS, SWA, TOMBSTONE, Scenario
from .snapshot_values import Pages, prefixes

SHORT = (1, 2, 3)


# LOCK-7, LOCK-5: what a host lock holds of each component, and what it does not hold.


@clause("LOCK-7")
@PLACEMENTS
def test_a_host_lock_holds_one_node_the_window_and_one_state(driver: Scenario, place: Callable[..., None]) -> None:
    pages = tuple(range(1, driver.window_pages + 4))
    place(driver, pages[:2], pages)
    receipt = driver.lock_host(driver.best_match(pages))
    first = driver.nodes()[pages].start // driver.config.page_size
    window = prefixes(*pages) - prefixes(*pages[: -driver.window_pages or None])
    holds = {FULL: prefixes(*pages) - prefixes(*pages[:first]), SWA: window, MAMBA: {pages}}
    expected = {(component, prefix): 1 for component in driver.config.components for prefix in holds[component]}
    found = driver.locks_on_host()
    driver.unlock_host(receipt)
    assert found == expected, f"LOCK-7: a host lock on {pages} must hold {expected}, it holds {found}"
    assert not driver.locks_on_host(), f"LOCK-7: released, it still holds {driver.locks_on_host()}"


@clause("LOCK-7")
def test_locks_of_the_two_tiers_are_counted_separately(driver: Scenario) -> None:
    driver.put_on_both(SHORT)
    on_device = [driver.lock_pages(SHORT), driver.lock_pages(SHORT)]
    with_device = driver.locks_on_device(), driver.locks_on_host()
    on_host = driver.lock_host(driver.best_match(SHORT))
    with_both = driver.locks_on_device(), driver.locks_on_host()
    assert not with_device[1], f"LOCK-7: a lock on the device locked {with_device[1]} on the host"
    assert with_both[0] == with_device[0], f"LOCK-7: a lock on the host changed {with_device[0]} to {with_both[0]}"
    for receipt in on_device:
        driver.unlock(receipt)
    left = driver.locks_on_device(), driver.locks_on_host()
    assert left == ({}, with_both[1]), f"LOCK-7: of {with_both} the device's were released, {left} is left"
    driver.unlock_host(on_host)


@clause("LOCK-7", "LOCK-4", needs=[Capability.SIZES])
def test_the_first_host_lock_and_the_last_release_change_the_sizes(driver: Scenario) -> None:
    driver.put_on_both(SHORT)
    sizes = [_host_sizes(driver)]
    receipts = []
    for _ in range(2):
        receipts.append(driver.lock_host(driver.best_match(SHORT)))
        sizes.append(_host_sizes(driver))
    for receipt in receipts:
        driver.unlock_host(receipt)
        sizes.append(_host_sizes(driver))
    unlocked, locked = sizes[0], sizes[1]
    assert sizes == [unlocked, locked, locked, locked, unlocked], f"LOCK-4: host sizes over two locks: {sizes}"
    moved = {name: locked[name][1] - unlocked[name][1] for name in unlocked}
    assert all(moved.values()), f"LOCK-4: each component protects something of {SHORT} on the host, got {moved}"


@clause("LOCK-7", "LOCK-5", "EVICT-8")
@PLACEMENTS
def test_locked_host_data_stays_on_the_host(driver: Scenario, place: Callable[..., None]) -> None:
    place(driver, SHORT)
    receipt = driver.lock_host(driver.best_match(SHORT))
    before = _locked_slots(driver)
    for component in driver.config.components:
        driver.evict_all_host(component)
        assert _locked_slots(driver) == before, f"LOCK-5: evicting {component} on the host changed what is locked there"
    driver.unlock_host(receipt)
    driver.evict_all_host(FULL)
    assert not driver.host_slots(FULL), f"LOCK-7: released, all may go, left is {driver.host_slots(FULL).keys()}"


@clause("LOCK-7", "EVICT-8")
def test_a_host_lock_removes_a_node_from_the_eviction_order_until_its_release(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_on_host([1], [2], [3])
        receipt = driver.lock_host(driver.best_match([1]))
        for page in (2, 3):
            driver.match(driver.key_of([page]), chunked=True)
        order = []
        for _ in range(2):
            driver.evict_host(component, driver.unit(component))
            order.append(sorted(driver.host_slots(FULL)))
            if len(order) == 1:
                driver.unlock_host(receipt)
        expected = [[(1,), (3,)], [(3,)]]
        assert order == expected, (
            f"LOCK-7: {component}: 1 is the oldest and locked, so 2 goes and then 1; left: {order}"
        )


@clause("LOCK-7", "EVICT-7")
def test_a_host_lock_does_not_lock_device_data(driver: Scenario) -> None:
    driver.put_on_both(SHORT)
    receipt = driver.lock_host(driver.best_match(SHORT))
    driver.evict_all()
    assert not driver.device_slots(FULL), (
        f"LOCK-7: the device is not locked, and {driver.device_slots(FULL).keys()} stayed there"
    )
    assert driver.tier_hits(SHORT) == (0, 3), (
        f"LOCK-7: all of {SHORT} is on the host: expected (0, 3), got {driver.tier_hits(SHORT)}"
    )
    driver.unlock_host(receipt)


@clause("LOCK-7", "FLOW-5", executors=[ExecutorKind.STEPPED])
def test_a_host_lock_keeps_a_node_without_a_host_copy(driver: Scenario) -> None:
    driver.put_pages(SHORT)
    receipt = driver.lock_host(driver.find(SHORT))
    driver.step()
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    assert not driver.host_slots(FULL), f"FLOW-3: no copy arrived, yet {driver.host_slots(FULL)} is on the host"
    for component in driver.config.components:
        driver.evict(component, driver.config.capacity_tokens[component])
        driver.evict_all_host(component)
    assert SHORT in driver.nodes(), (
        f"LOCK-7: {SHORT} is locked on the host and was removed; left is {driver.nodes().keys()}"
    )
    driver.find(SHORT)
    driver.unlock_host(receipt)
    driver.drain()
    driver.evict_all()
    assert not driver.device_slots(FULL), (
        f"LOCK-7: released, all may leave the device, left is {driver.device_slots(FULL).keys()}"
    )


@clause("LOCK-7")
def test_a_removed_node_cannot_be_locked_on_the_host(driver: Scenario) -> None:
    driver.put_on_host(SHORT)
    handle = driver.best_match(SHORT)
    driver.evict_all_host(FULL)
    with driver.refused("LOCK-7", "a host lock on a node that is gone"):
        driver.adapter.lock_host(handle)


@clause("LOCK-1", "FLOW-5")
def test_a_node_on_the_host_alone_cannot_be_locked_on_the_device(driver: Scenario) -> None:
    if Capability.DEMOTED_LOCKS in driver.adapter.capabilities:
        pytest.skip("the cache can lock such a node: it declares DEMOTED_LOCKS")
    driver.put_on_host(SHORT)
    handle = driver.best_match(SHORT)
    with driver.refused("LOCK-1", "a device lock on a node that is on the host alone"):
        driver.adapter.lock(handle)


def _host_sizes(driver: Scenario) -> dict[str, tuple[int, int]]:
    return {name: (sizes.evictable, sizes.protected) for name, sizes in driver.adapter.host_sizes().items()}


def _locked_slots(driver: Scenario) -> dict[tuple[str, Pages], tuple[int, ...]]:
    """The host slots of each page, and the state, under a host lock."""
    slots = {component: driver.host_slots(component) for component in driver.config.components}
    return {(component, prefix): slots[component][prefix] for component, prefix in driver.locks_on_host()}


# LOCK-7, LOCK-2, LOCK-3, LOCK-6: receipts of host locks, and what releasing them undoes.

LONG = (1, 2, 3, 4, 5, 6)

Disturb = Callable[[Scenario], None]


def split(driver: Scenario) -> None:
    """Matches end inside the locked nodes, and split them."""
    for pages in (LONG[:2], LONG[:5], LONG[:4], LONG[:1]):
        driver.match(driver.key_of(pages))


def branch(driver: Scenario) -> None:
    """Diverging prompts are cached and backed up."""
    for pages in ([*SHORT[:2], 7], [*LONG[:4], 7]):
        driver.put_pages(pages)
    driver.drain()


def demote(driver: Scenario) -> None:
    """Everything is evicted from the device."""
    driver.evict_all()


def come_back(driver: Scenario) -> None:
    """Everything is evicted from the device, and the prompts are loaded."""
    driver.evict_all()
    for pages in (SHORT, LONG):
        driver.load(driver.key_of(pages))


def compute_again(driver: Scenario) -> None:
    """Everything is evicted from the device, and the prompts are computed again."""
    driver.evict_all()
    for pages in (LONG, SHORT):
        driver.insert_fresh(pages)
    driver.drain()


def press(driver: Scenario) -> None:
    """Everything evictable is evicted from the host."""
    driver.evict_all_host()


def share(driver: Scenario) -> None:
    """Other receipts are taken and released."""
    for pages in (LONG, SHORT):
        driver.unlock_host(driver.lock_host(driver.best_match(pages)))


def everything(driver: Scenario) -> None:
    """All changes, one after the other."""
    for disturb in (branch, split, demote, press, share, come_back, press, compute_again, share):
        disturb(driver)


@clause("LOCK-7", "LOCK-2", page_sizes=[16])
@pytest.mark.parametrize(
    "disturb",
    [split, branch, demote, come_back, compute_again, press, share, everything],
    ids=lambda each: each.__name__,
)
def test_a_release_undoes_only_its_own_host_lock(driver: Scenario, disturb: Disturb) -> None:
    driver.put_on_both(SHORT, LONG)
    long = driver.lock_host(driver.best_match(LONG))
    with_long = driver.locks_on_host()
    short = driver.lock_host(driver.best_match(SHORT))
    with_both = driver.locks_on_host()
    disturb(driver)
    assert driver.locks_on_host() == with_both, f"LOCK-2: {disturb.__name__} made {with_both} {driver.locks_on_host()}"
    driver.unlock_host(long)
    expected, found = with_both - with_long, driver.locks_on_host()
    assert found == expected, f"LOCK-2: after {disturb.__name__} and a release expected {expected}, got {found}"
    driver.unlock_host(short)
    left = driver.locks_on_host(), driver.locks_on_device()
    assert left == ({}, {}), f"LOCK-2: after {disturb.__name__} and both releases {left} is left"


@clause("LOCK-7", "INS-8")
def test_a_host_lock_that_a_split_crosses_holds_both_parts(driver: Scenario) -> None:
    driver.put_on_both(LONG)
    receipt = driver.lock_host(driver.best_match(LONG))
    before = driver.locks_on_host()
    split(driver)
    assert driver.locks_on_host() == before, (
        f"INS-8: host locks went from {before} to {driver.locks_on_host()} in a split"
    )
    demote(driver)
    press(driver)
    kept = {prefix for component, prefix in before if component == FULL} - driver.host_slots(FULL).keys()
    assert not kept, f"LOCK-7: {kept} was locked before a split, and left the host"
    driver.unlock_host(receipt)
    assert not driver.locks_on_host(), f"INS-8: the receipt that crosses the split left {driver.locks_on_host()}"


@clause("LOCK-7", "LOCK-6", page_sizes=[16])
def test_releasing_a_host_lock_twice_is_refused(driver: Scenario) -> None:
    driver.put_on_both(SHORT)
    first, second = driver.lock_host(driver.best_match(SHORT)), driver.lock_host(driver.best_match(SHORT))
    driver.unlock_host(first)
    with driver.refused("LOCK-6", "a second release of a host lock, while there is another"):
        driver.adapter.unlock_host(first)
    driver.unlock_host(second)
    for receipt in (first, second):
        with driver.refused("LOCK-6", "a second release of a host lock, when nothing is locked"):
            driver.adapter.unlock_host(receipt)


@clause("LOCK-7", "LOCK-6", page_sizes=[16])
def test_a_receipt_of_the_other_tier_is_refused(driver: Scenario) -> None:
    driver.put_on_both(SHORT)
    on_host, on_device = driver.lock_host(driver.best_match(SHORT)), driver.lock_pages(SHORT)
    with driver.refused("LOCK-6", "a device receipt, given back as one of the host"):
        driver.adapter.unlock_host(on_device)
    with driver.refused("LOCK-6", "a host receipt, given back as one of the device"):
        driver.adapter.unlock(on_host)
    driver.unlock(on_device)
    driver.unlock_host(on_host)


@clause("LOCK-7", "LOCK-6", page_sizes=[16])
def test_a_host_receipt_of_another_cache_is_refused(driver: Scenario) -> None:
    with driver.host_variant() as other:
        for each in (driver, other):
            each.put_on_both(SHORT)
        own, foreign = driver.lock_host(driver.best_match(SHORT)), other.lock_host(other.best_match(SHORT))
        with driver.refused("LOCK-6", "the host receipt of another cache"):
            driver.adapter.unlock_host(foreign)
        driver.unlock_host(own)
        other.unlock_host(foreign)


@clause("LOCK-2", "LOCK-7", components=(SWA,))
def test_a_temporary_host_lock_leaves_the_window_of_another_lock(driver: Scenario) -> None:
    driver.put_on_both(SHORT, LONG)
    receipt = driver.lock_host(driver.best_match(SHORT))
    before = driver.locks_on_host()
    for pages in (LONG, LONG, SHORT):
        driver.unlock_host(driver.lock_host(driver.best_match(pages)))
        assert driver.locks_on_host() == before, (
            f"LOCK-2: a temporary lock on {pages} made {before} {driver.locks_on_host()}"
        )
    driver.unlock_host(receipt)


@clause("LOCK-3", "LOCK-7", each=(SWA, MAMBA), write_policies=FORWARD)
def test_data_that_a_host_lock_skipped_stays_unlocked(driver: Scenario, component: str) -> None:
    """Lock a node that lacks a component on the host, back it up, lock again, release in the order of the locks."""
    driver.put_on_both(TOMBSTONE, driver.longer_prompt())
    driver.evict_inner_from_host(component)
    assert TOMBSTONE not in driver.host_slots(component), f"EVICT-8: {component} of {TOMBSTONE} was to leave the host"
    receipt = driver.lock_host(driver.best_match(TOMBSTONE))
    skipped = driver.locks_on_host()[component, TOMBSTONE]
    driver.put_and_back_up(TOMBSTONE)
    assert TOMBSTONE in driver.host_slots(component), (
        f"HOST-1: {component} of {TOMBSTONE} was used, and is not backed up"
    )
    second = driver.lock_host(driver.best_match(TOMBSTONE))
    driver.unlock_host(receipt)
    counts = skipped, driver.locks_on_host()[component, TOMBSTONE]
    driver.unlock_host(second)
    assert counts == (0, 1), f"LOCK-3: {component} host locks at the gap, then by the second lock alone: {counts}"
    assert not driver.locks_on_host(), f"LOCK-3: both are released, {driver.locks_on_host()} is left"
