"""INS-1, INS-2: which slots an insert keeps, and which it frees."""

from __future__ import annotations

import numpy as np

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import FULL, find, insert_fresh, key_of, lock, put
from .tree_view import device_slots, free_slots, nodes, residency


@clause("INS-1", bigram=True)
def test_an_insert_returns_how_much_was_present(driver: Driver) -> None:
    page = driver.config.page_size
    results = [put(driver, pages) for pages in ([1], [1, 2, 3], [1, 2, 3])]
    lengths = [(result.prefix_length, result.accepted_length) for result in results]
    expected = [(0, page), (page, 3 * page), (3 * page, 3 * page)]
    assert lengths == expected, f"INS-1: (present, accepted) of three inserts: expected {expected}, got {lengths}"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_new_pages_become_a_leaf_with_the_given_slots(driver: Driver) -> None:
    page = driver.config.page_size
    put(driver, [1])
    own = insert_fresh(driver, [1, 2, 3])
    slots = device_slots(driver, FULL)
    kept = [*slots[1, 2], *slots[1, 2, 3]]
    assert kept == own.slots[page:].tolist(), f"INS-1: the leaf holds {kept}, given were {own.slots[page:].tolist()}"
    shape = {pages for pages in nodes(driver) if len(pages) > 1}
    assert (1, 2, 3) in shape, f"INS-1: no leaf ends where the key does: {shape}"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_duplicates_are_freed_and_the_rest_is_kept(driver: Driver) -> None:
    page = driver.config.page_size
    first = insert_fresh(driver, [1, 2])
    second = insert_fresh(driver, [1, 2, 3])
    slots = device_slots(driver, FULL)
    kept = [*slots[1,], *slots[1, 2], *slots[1, 2, 3]]
    expected = [*first.slots.tolist(), *second.slots[2 * page :].tolist()]
    assert kept == expected, f"INS-1: the first of two equal pages stays: expected {expected}, kept {kept}"
    lost = set(second.slots[: 2 * page].tolist()) - free_slots(driver.snapshot())[FULL]
    assert not lost, f"INS-1: duplicates {lost} are not free again"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_slots_shared_with_the_tree_are_not_freed(driver: Driver) -> None:
    put(driver, [1])
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())[FULL]
    put(driver, [1, 2])
    after = residency(driver.snapshot(), driver.config)
    changed = {place for place, slots in before.items() if after.get(place) != slots}
    assert not changed, f"INS-1: a request that shares page 1 inserted pages 1 and 2; {changed} changed"
    taken = len(free) - len(free_slots(driver.snapshot())[FULL])
    assert taken == driver.config.page_size, f"INS-1: one page is new, {taken} slots were taken"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_page_that_another_request_cached_meanwhile_is_a_duplicate(driver: Driver) -> None:
    page = driver.config.page_size
    put(driver, [1])
    shared = driver.match(key_of(driver, [1])).device_indices
    receipt = lock(driver, [1])
    fresh = driver.allocate(page)
    assert fresh is not None, "one page of many is free"
    driver.write(key_of(driver, [1, 2]), fresh, page)
    other = insert_fresh(driver, [1, 2])
    result = driver.insert(key_of(driver, [1, 2]), np.concatenate((shared, fresh)), shared=page)
    driver.unlock(receipt)
    assert result.prefix_length == 2 * page, f"INS-1: both pages were present, got {result}"
    slots = device_slots(driver, FULL)
    kept, expected = [*slots[1,], *slots[1, 2]], [*shared.tolist(), *other.slots[page:].tolist()]
    assert kept == expected, f"INS-1: expected page 1 as it was and page 2 of the other request {expected}, kept {kept}"


@clause("INS-2", bigram=True)
def test_inserting_again_changes_no_residency(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2, 3])
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    for again in (
        lambda: insert_fresh(driver, [1, 2, 3]),
        lambda: put(driver, [1, 2, 3]),
        lambda: insert_fresh(driver, [1]),
    ):
        again()
        after = residency(driver.snapshot(), driver.config)
        assert after == before, f"INS-2: inserted again, residency went from {before} to {after}"
        assert free_slots(driver.snapshot()) == free, "INS-2: the slots of the second insert are not all free again"


@clause("INS-1", "REQ-4", bigram=True)
def test_the_accepted_length_is_what_a_match_gives(driver: Driver) -> None:
    page = driver.config.page_size
    for pages in ([1, 2, 3], [1, 2, 4, 5], [6]):
        accepted = put(driver, pages).accepted_length
        assert accepted == len(pages) * page, f"INS-1: all of {pages} was to be accepted, not {accepted}"
        find(driver, pages)
