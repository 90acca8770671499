"""POOL-5: SWA slots are the partners of FULL slots, and can be freed without them."""

from __future__ import annotations

import numpy as np

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import PADDING_SLOT, Slots

from .checks import refused
from .scenario import FULL, SWA, evict_all, key_of, lock, put, window_pages
from .tree_view import free_slots, snapshot_values


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_partners_that_were_given_back_are_skipped(driver: Driver) -> None:
    page = driver.config.page_size
    slots = _allocated(driver, 3)
    partners = driver.adapter.partners(slots)
    before = free_slots(driver.snapshot())
    driver.release_window(slots[page : 2 * page])
    released = free_slots(driver.snapshot())
    assert released[FULL] == before[FULL], "POOL-5: giving partners back touched FULL slots"
    assert released[SWA] - before[SWA] == set(partners[page : 2 * page].tolist()), "POOL-5: another slot was freed"
    left = driver.adapter.partners(slots)
    assert not left[page : 2 * page].any(), f"POOL-5: no partners are left there, got {left.tolist()}"
    driver.release_window(slots)
    again = free_slots(driver.snapshot())
    assert again[SWA] - before[SWA] == set(partners.tolist()), "POOL-5: what has no partner is skipped, the rest freed"
    driver.free(slots)
    assert PADDING_SLOT not in free_slots(driver.snapshot())[SWA], "POOL-5: slot 0 was freed as a partner"


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_giving_back_no_partner_changes_nothing(driver: Driver) -> None:
    slots = _allocated(driver, 2)
    driver.release_window(slots)
    before = snapshot_values(driver.snapshot())
    driver.release_window(slots)
    assert snapshot_values(driver.snapshot()) == before, "POOL-5: slots without partners were not skipped"


@clause("POOL-5", bigram=True)
def test_a_reused_slot_has_a_new_partner(driver: Driver) -> None:
    # Recycled FULL pages that kept the mapping of their last owner freed other requests' SWA pages twice.
    capacity = driver.config.capacity_tokens
    slots = _allocated(driver, 4)
    driver.release_window(slots[: 2 * driver.config.page_size])
    driver.free(slots)
    everything = driver.allocate(capacity[SWA])
    assert everything is not None, "POOL-5: every SWA slot is free again"
    partners = driver.adapter.partners(everything)
    assert len(np.unique(partners)) == capacity[SWA], (
        f"POOL-5: {capacity[SWA]} partners, each once: {partners.tolist()}"
    )
    assert partners.all(), f"POOL-5: fresh slots have partners above 0: {partners.tolist()}"


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_slots_of_a_tombstone_have_no_partner_and_are_freed_without_one(driver: Driver) -> None:
    pool = free_slots(driver.snapshot())
    pages = list(range(1, window_pages(driver.config) + 3))
    put(driver, pages, passed=2)
    found = driver.match(key_of(driver, pages)).device_indices
    partners = driver.adapter.partners(found)
    expected = [False] * 2 * driver.config.page_size + [True] * (len(pages) - 2) * driver.config.page_size
    assert (partners > PADDING_SLOT).tolist() == expected, f"POOL-5: two pages are tombstones: {partners.tolist()}"
    evict_all(driver, FULL)
    assert free_slots(driver.snapshot()) == pool, f"POOL-5: expected all of {pool} free again"


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_evicted_window_data_leaves_its_slots_without_a_partner(driver: Driver) -> None:
    put(driver, [1, 2])
    pages = [1, 2, *range(3, 3 + window_pages(driver.config))]
    put(driver, pages)
    slots = driver.match(key_of(driver, pages)).device_indices
    receipt = lock(driver, pages)
    before = driver.adapter.partners(slots)
    evict_all(driver, SWA)
    after = driver.adapter.partners(slots)
    assert np.array_equal(after[after > 0], before[after > 0]), f"POOL-5: {before.tolist()} became {after.tolist()}"
    assert not after[: 2 * driver.config.page_size].any(), f"POOL-5: the evicted pages have partners: {after.tolist()}"
    driver.unlock(receipt)


@clause("POOL-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_the_partners_of_cached_slots_are_not_the_callers_to_give_back(driver: Driver) -> None:
    put(driver, [1, 2])
    slots = driver.match(key_of(driver, [1, 2])).device_indices
    with refused(driver, "POOL-5", f"giving back the partners of the tree's slots {slots.tolist()}"):
        driver.adapter.release_window(slots)


def _allocated(driver: Driver, pages: int) -> Slots:
    slots = driver.allocate(pages * driver.config.page_size)
    assert slots is not None, f"POOL-3: an empty cache has room for {pages} pages"
    return slots
