"""INS-4, INS-5, INS-6: inserts of requests whose first pages are before their window."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    SWA,
    TOMBSTONE,
    evict_all,
    hit_pages,
    insert_fresh,
    key_of,
    lock,
    make_tombstone,
    put,
    window_pages,
)
from .tree_view import device_slots, free_slots, locks, nodes, prefixes, residency

LONG = (1, 2, 3, 4)
"""The pages of a tombstone, longer than most windows."""


def put_behind_tombstone(driver: Driver) -> list[int]:
    """Cache a prompt with one window of SWA data at its end, and none on its first four pages."""
    pages = [*LONG, *range(5, 5 + window_pages(driver.config))]
    put(driver, pages, passed=len(LONG))
    return pages


@clause("INS-4", needs=[Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("passed", range(5))
def test_an_insert_restores_the_swa_data_inside_its_window(driver: Driver, passed: int) -> None:
    pages = put_behind_tombstone(driver)
    before = device_slots(driver, SWA).keys()
    assert before == prefixes(*pages) - prefixes(*LONG), f"INS-6: SWA data in the window alone, got {before}"
    size = driver.config.page_size
    own = insert_fresh(driver, LONG, passed=passed)
    restored = {prefix: slots for prefix, slots in device_slots(driver, SWA).items() if prefix not in before}
    expected = {LONG[: page + 1]: tuple(own.partners[page * size :][:size].tolist()) for page in range(passed, 4)}
    assert restored == expected, f"INS-4: the window has left {passed} pages: expected {expected}, got {restored}"
    assert device_slots(driver, FULL).keys() == prefixes(*pages), "INS-4: expected the FULL data not to change"


@clause("INS-4", needs=[Capability.SNAPSHOT], page_sizes=[3, 16, 64])
def test_a_page_that_is_only_partly_in_the_window_stays_a_tombstone(driver: Driver) -> None:
    pages = put_behind_tombstone(driver)
    key, size = key_of(driver, LONG), driver.config.page_size
    slots = driver.allocate(len(LONG) * size)
    assert slots is not None, "four pages of many are free"
    driver.release_window(slots[: 2 * size])
    driver.write(key, slots, 0)
    driver.insert(key, slots, shared=0, window_start=size + 1)
    restored = device_slots(driver, SWA).keys() - (prefixes(*pages) - prefixes(*LONG))
    expected = {LONG[:3], LONG}
    assert restored == expected, f"INS-4: the window begins inside page 2: expected {expected} restored, got {restored}"


@clause("INS-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_restored_prefix_hits_again(driver: Driver) -> None:
    make_tombstone(driver, SWA)
    assert hit_pages(driver, TOMBSTONE) == 0, "MATCH-3: a tombstone right below the root can be the end of no match"
    insert_fresh(driver, TOMBSTONE)
    hit = hit_pages(driver, TOMBSTONE)
    assert hit == len(TOMBSTONE), f"INS-4: the restored prefix of {len(TOMBSTONE)} pages hits {hit}"


@clause("INS-4", "INS-1", needs=[Capability.SNAPSHOT])
def test_the_slots_of_a_restoring_insert_have_one_owner_each(driver: Driver) -> None:
    make_tombstone(driver, SWA)
    free = free_slots(driver.snapshot())
    insert_fresh(driver, TOMBSTONE)
    after = free_slots(driver.snapshot())
    taken = {component: len(free[component]) - len(after[component]) for component in (FULL, SWA)}
    expected = {FULL: 0, SWA: len(TOMBSTONE) * driver.config.page_size}
    assert taken == expected, f"INS-4: FULL data was there, SWA data was not: expected {expected} taken, got {taken}"
    evict_all(driver)
    left = driver.config.capacity_tokens[SWA] - len(free_slots(driver.snapshot())[SWA])
    assert left == 0, f"INS-4: evicted again, {left} SWA slots are not free"


@clause("INS-4", "LOCK-5", needs=[Capability.SNAPSHOT])
def test_restoring_moves_no_locked_slot(driver: Driver) -> None:
    handle = make_tombstone(driver, SWA)
    receipt = driver.lock(handle)
    before = {prefix: device_slots(driver, FULL)[prefix] for prefix in prefixes(*TOMBSTONE)}
    insert_fresh(driver, TOMBSTONE)
    after = {prefix: device_slots(driver, FULL)[prefix] for prefix in prefixes(*TOMBSTONE)}
    driver.unlock(receipt)
    assert after == before, f"LOCK-5: FULL slots under a lock went from {before} to {after}"


@clause("INS-4", "INS-2", needs=[Capability.SNAPSHOT])
def test_cached_data_is_not_replaced(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    for passed in (0, 1, 2):
        insert_fresh(driver, [1, 2, 3], passed=passed)
        assert residency(driver.snapshot(), driver.config) == before, f"INS-4: window past {passed} pages replaced data"
        assert free_slots(driver.snapshot()) == free, f"INS-4: window past {passed} pages: not all slots are free again"


@clause("INS-4", needs=[Capability.SNAPSHOT])
def test_a_request_that_reads_through_a_tombstone_restores_nothing(driver: Driver) -> None:
    pages = put_behind_tombstone(driver)
    put(driver, [*pages, 90])
    restored = device_slots(driver, SWA).keys() & prefixes(*LONG)
    assert not restored, f"INS-4: no request computed it: expected no new SWA data, got {restored}"


@clause("INS-5", "INS-1", components=(SWA,), needs=[Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("present", [[], [1]], ids=["nothing cached", "a prefix cached"])
def test_a_leaf_outside_the_window_is_not_created(driver: Driver, present: list[int]) -> None:
    if present:
        put(driver, present)
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    result = insert_fresh(driver, [1, 2, 3], passed=3).result
    length = len(present) * driver.config.page_size
    lengths = (result.prefix_length, result.accepted_length)
    assert lengths == (length, length), f"INS-5: expected {length} present and accepted, got {lengths}"
    assert residency(driver.snapshot(), driver.config) == before, "INS-5: a leaf without SWA data was created"
    assert free_slots(driver.snapshot()) == free, "INS-5: the slots of the refused leaf are not free again"


@clause("INS-6", needs=[Capability.SNAPSHOT])
@pytest.mark.parametrize("passed", range(1, 5))
def test_a_leaf_is_split_where_the_window_begins(driver: Driver, passed: int) -> None:
    pages = [1, 2, 3, 4, 5]
    put(driver, pages, passed=passed)
    expected = prefixes(*pages) - prefixes(*pages[:passed])
    live = device_slots(driver, SWA).keys()
    assert live == expected, f"INS-6: the window has left {passed} pages: expected SWA data of {expected}, got {live}"
    assert device_slots(driver, FULL).keys() == prefixes(*pages), (
        f"INS-6: FULL data of all pages: expected {prefixes(*pages)}, got {device_slots(driver, FULL)}"
    )
    ends = nodes(driver).keys()
    assert tuple(pages[:passed]) in ends, f"INS-6: a node ends at the window's edge {pages[:passed]}, got {ends}"


@clause("INS-6", "LOCK-1", needs=[Capability.SNAPSHOT, Capability.SIZES], bigram=True)
@pytest.mark.parametrize("passed", [0, 1])
@pytest.mark.parametrize("present", [0, 1])
def test_a_lock_on_a_long_leaf_pins_one_window(driver: Driver, present: int, passed: int) -> None:
    window = window_pages(driver.config)
    pages = list(range(1, window + 4))
    if present:
        put(driver, pages[:present])
    put(driver, pages, passed=passed)
    receipt = lock(driver, pages)
    pinned = {prefix for component, prefix in locks(driver) if component == SWA}
    protected = driver.adapter.sizes()[SWA].protected
    driver.unlock(receipt)
    expected = prefixes(*pages) - prefixes(*pages[:-window])
    assert pinned == expected, f"INS-6: a lock pins the {window} pages of one window, {expected}, it pinned {pinned}"
    tokens = window * driver.config.page_size
    assert protected == tokens, f"INS-6: {tokens} SWA tokens protected, got {protected}"
