"""LOCK-1, LOCK-4, LOCK-5, LOCK-6, LOCK-8: what a lock holds, and that locked data is neither evicted nor moved."""

from __future__ import annotations

from collections import Counter

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
    evict_all,
    evicted_with,
    find,
    hit_pages,
    insert_fresh,
    key_of,
    lock,
    make_tombstone,
    put,
    recompute,
    window_pages,
)
from .tree_view import device_slots, locks, prefixes


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
