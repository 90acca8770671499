"""LOCK-1 to LOCK-6, LOCK-8: what a lock on the device holds, and what its release undoes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Component

from .checks import refused
from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    drop_on_device,
    evict_all,
    evicted_with,
    find,
    hit_pages,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    make_tombstone,
    put,
    put_on_both,
    recompute,
    tier_hits,
    window_pages,
)
from .tree_view import components_on_device, device_locks, device_slots, locks, prefixes

# LOCK-1, LOCK-4, LOCK-5, LOCK-6, LOCK-8: what a lock holds, and that locked data is neither evicted nor moved.


def expected_locks(driver: Driver, pages: tuple[int, ...]) -> Counter[tuple[str, tuple[int, ...]]]:
    """The locks of one receipt at the end of some pages whose last window is a node of its own."""
    holds = {
        FULL: prefixes(*pages),
        SWA: prefixes(*pages) - prefixes(*pages[: -window_pages(driver.config) or None]),
        MAMBA: {pages},
    }
    return Counter({(component, prefix): 1 for component in driver.config.components for prefix in holds[component]})


@clause("LOCK-1", bigram=True)
def test_a_lock_holds_the_path_the_window_and_the_state(driver: Driver) -> None:
    pages = tuple(range(1, window_pages(driver.config) + 4))
    for prompt in (pages[:2], pages, (1, 9)):
        put(driver, prompt)
    receipt = lock(driver, pages)
    found, expected = locks(driver), expected_locks(driver, pages)
    driver.unlock(receipt)
    assert found == expected, f"LOCK-1: a lock on {pages} must hold {expected}, it holds {found}"
    assert not locks(driver), f"LOCK-2: released, it still holds {locks(driver)}"


@clause("LOCK-1", components=(SWA,))
def test_a_lock_on_a_prompt_shorter_than_the_window_holds_swa_to_the_root(driver: Driver) -> None:
    pages = tuple(range(1, max(2, window_pages(driver.config))))
    put(driver, pages)
    receipt = lock(driver, pages)
    found = {prefix for component, prefix in locks(driver) if component == SWA}
    driver.unlock(receipt)
    assert found == prefixes(*pages), f"LOCK-1: all of {pages} lies in the window, held is {found}"


@clause("LOCK-1")
def test_a_lock_on_the_root_holds_nothing(driver: Driver) -> None:
    put(driver, [1])
    receipt = driver.lock(driver.match(key_of(driver, [])).device_anchor)
    assert not locks(driver), f"LOCK-1: there is nothing from the root to the root, held are {locks(driver)}"
    evict_all(driver)
    driver.unlock(receipt)
    assert hit_pages(driver, [1]) == 0, "LOCK-1: a lock on the root kept what is below it"


@clause("LOCK-1", needs=[Capability.SNAPSHOT])
def test_a_removed_node_cannot_be_locked(driver: Driver) -> None:
    put(driver, [1])
    handle = find(driver, [1])
    evict_all(driver)
    with refused(driver, "LOCK-1", "a lock on an evicted node"):
        driver.adapter.lock(handle)


@clause("LOCK-4", bigram=True)
def test_the_first_lock_and_the_last_release_change_the_sizes_once(driver: Driver) -> None:
    size, window = driver.config.page_size, window_pages(driver.config)
    pages = tuple(range(1, window + 3))
    put(driver, pages)
    tokens = {FULL: len(pages) * size, SWA: window * size, MAMBA: 1}
    stored = {FULL: len(pages) * size, SWA: len(pages) * size, MAMBA: 1}
    unlocked = {name: (stored[name], 0) for name in driver.config.components}
    locked = {name: (stored[name] - tokens[name], tokens[name]) for name in driver.config.components}
    seen = [_sizes(driver)]
    receipts = []
    for _ in range(2):
        receipts.append(lock(driver, pages))
        seen.append(_sizes(driver))
    for receipt in receipts:
        driver.unlock(receipt)
        seen.append(_sizes(driver))
    expected = [unlocked, locked, locked, locked, unlocked]
    assert seen == expected, f"LOCK-4: (evictable, protected) over lock, lock, release, release: {expected}, got {seen}"


@clause("LOCK-4", bigram=True)
def test_a_shared_path_is_counted_once(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    put(driver, [1, 3])
    size = driver.config.page_size
    receipts = [lock(driver, pages) for pages in ([1, 2], [1, 3])]
    protected = driver.adapter.sizes()[FULL].protected
    assert protected == 3 * size, f"LOCK-4: two prompts of 2 pages share one: 3 pages protected, got {protected}"
    driver.unlock(receipts[0])
    protected = driver.adapter.sizes()[FULL].protected
    assert protected == 2 * size, f"LOCK-4: the other prompt holds its 2 pages, got {protected}"
    driver.unlock(receipts[1])


@clause("LOCK-5", bigram=True)
def test_locked_data_survives_any_eviction(driver: Driver) -> None:
    pages = [1, 2, 3]
    put(driver, [1])
    put(driver, pages)
    put(driver, [8])
    receipt = lock(driver, pages)
    for component in driver.config.components:
        result = driver.evict(component, driver.config.capacity_tokens[component])
        assert hit_pages(driver, pages) == 3, f"LOCK-5: evicting {component} ({result}) took what is locked"
    assert hit_pages(driver, [8]) == 0, "EVICT-1: what is not locked was to go"
    driver.unlock(receipt)
    evict_all(driver)
    assert hit_pages(driver, pages) == 0, "LOCK-2: released, it can be evicted again"


@clause("LOCK-5", "POOL-3", needs=[Capability.SIZES], bigram=True)
def test_locked_data_survives_any_allocation(driver: Driver) -> None:
    pages, size = [1, 2, 3], driver.config.page_size
    put(driver, pages)
    receipt = lock(driver, pages)
    paged = [component for component in driver.config.components if component != Component.MAMBA]
    room = min(driver.adapter.sizes()[name].free + driver.adapter.sizes()[name].evictable for name in paged)
    assert driver.allocate(room + size) is None, f"LOCK-5: {room + size} slots were given, {room} are not locked"
    slots = driver.allocate(room)
    assert slots is not None, f"EVICT-1: {room} slots are free or evictable"
    assert hit_pages(driver, pages) == 3, "LOCK-5: an allocation took what is locked"
    driver.unlock(receipt)


@clause("LOCK-5", needs=[Capability.SNAPSHOT])
def test_an_insert_over_locked_data_moves_no_slot(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    receipt = lock(driver, [1, 2, 3])
    before = {component: device_slots(driver, component) for component in driver.config.components}
    insert_fresh(driver, [1, 2, 3])
    after = {component: device_slots(driver, component) for component in driver.config.components}
    driver.unlock(receipt)
    assert after == before, f"LOCK-5: slots under a lock went from {before} to {after}"


@clause("LOCK-6", needs=[Capability.SNAPSHOT], bigram=True)
def test_releasing_twice_is_refused(driver: Driver) -> None:
    put(driver, [1, 2])
    first, second = lock(driver, [1, 2]), lock(driver, [1, 2])
    driver.unlock(first)
    with refused(driver, "LOCK-6", "a second release"):
        driver.adapter.unlock(first)
    driver.unlock(second)
    for receipt in (first, second):
        with refused(driver, "LOCK-6", "a second release, when nothing is locked"):
            driver.adapter.unlock(receipt)


@clause("LOCK-6", needs=[Capability.SNAPSHOT])
def test_a_receipt_of_another_cache_is_refused(driver: Driver) -> None:
    other = Driver(type(driver.adapter)(driver.config), driver.config)
    for each in (driver, other):
        put(each, [1, 2])
    own, foreign = lock(driver, [1, 2]), lock(other, [1, 2])
    with refused(driver, "LOCK-6", "the receipt of another cache"):
        driver.adapter.unlock(foreign)
    driver.unlock(own)
    other.unlock(foreign)
    other.adapter.close()


@clause("LOCK-8", components=(SWA,), bigram=True)
def test_full_is_locked_as_often_as_swa(driver: Driver) -> None:
    lock_before_and_after_revival(driver, SWA)


@clause("LOCK-8", components=(MAMBA,))
def test_full_is_locked_as_often_as_a_state(driver: Driver) -> None:
    lock_before_and_after_revival(driver, MAMBA)


def lock_before_and_after_revival(driver: Driver, component: str) -> None:
    """Lock a tombstone once while it lacks a component, and twice after a recomputation."""
    handle = make_tombstone(driver, component)
    receipts = [driver.lock(handle)]
    recompute(driver)
    receipts += [driver.lock(handle), driver.lock(handle)]
    found = locks(driver)
    counts = {component: found[component, TOMBSTONE] for component in driver.config.components}
    expected = {name: 2 if name in evicted_with(driver, component) else 3 for name in driver.config.components}
    assert counts == expected, f"LOCK-8: expected {expected}, got {counts}"
    for receipt in receipts:
        driver.unlock(receipt)
    assert not locks(driver), f"LOCK-2: released, {locks(driver)} is left"


def _sizes(driver: Driver) -> dict[str, tuple[int, int]]:
    return {name: (sizes.evictable, sizes.protected) for name, sizes in driver.adapter.sizes().items()}


# LOCK-2, LOCK-3: a release undoes exactly what its lock did, also after other changes.


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


# LOCK-2, LOCK-3, LOCK-5: device locks on nodes whose data is demoted and loaded back.


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
    left = components_on_device(driver, TOMBSTONE)
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
