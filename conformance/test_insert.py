"""INS-1 to INS-7: which slots and states an insert keeps, and which it frees."""

from __future__ import annotations

import numpy as np
import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, FreshInsert, Scenario
from .snapshot_values import free_slots, prefixes, residency

# INS-1, INS-2: which slots an insert keeps, and which it frees.


@clause("INS-1", bigram=True)
def test_an_insert_returns_how_much_was_present(driver: Scenario) -> None:
    page = driver.config.page_size
    results = [driver.put_pages(pages) for pages in ([1], [1, 2, 3], [1, 2, 3])]
    lengths = [(result.prefix_length, result.accepted_length) for result in results]
    expected = [(0, page), (page, 3 * page), (3 * page, 3 * page)]
    assert lengths == expected, f"INS-1: (present, accepted) of three inserts: expected {expected}, got {lengths}"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_new_pages_become_a_leaf_with_the_given_slots(driver: Scenario) -> None:
    page = driver.config.page_size
    driver.put_pages([1])
    own = driver.insert_fresh([1, 2, 3])
    slots = driver.device_slots(FULL)
    kept = [*slots[1, 2], *slots[1, 2, 3]]
    assert kept == own.slots[page:].tolist(), f"INS-1: the leaf holds {kept}, given were {own.slots[page:].tolist()}"
    shape = {pages for pages in driver.nodes() if len(pages) > 1}
    assert (1, 2, 3) in shape, f"INS-1: no leaf ends where the key does: {shape}"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_duplicates_are_freed_and_the_rest_is_kept(driver: Scenario) -> None:
    page = driver.config.page_size
    first = driver.insert_fresh([1, 2])
    second = driver.insert_fresh([1, 2, 3])
    slots = driver.device_slots(FULL)
    kept = [*slots[1,], *slots[1, 2], *slots[1, 2, 3]]
    expected = [*first.slots.tolist(), *second.slots[2 * page :].tolist()]
    assert kept == expected, f"INS-1: the first of two equal pages stays: expected {expected}, kept {kept}"
    lost = set(second.slots[: 2 * page].tolist()) - free_slots(driver.snapshot())[FULL]
    assert not lost, f"INS-1: duplicates {lost} are not free again"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_slots_shared_with_the_tree_are_not_freed(driver: Scenario) -> None:
    driver.put_pages([1])
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())[FULL]
    driver.put_pages([1, 2])
    after = residency(driver.snapshot(), driver.config)
    changed = {place for place, slots in before.items() if after.get(place) != slots}
    assert not changed, f"INS-1: a request that shares page 1 inserted pages 1 and 2; {changed} changed"
    taken = len(free) - len(free_slots(driver.snapshot())[FULL])
    assert taken == driver.config.page_size, f"INS-1: one page is new, {taken} slots were taken"


@clause("INS-1", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_page_that_another_request_cached_meanwhile_is_a_duplicate(driver: Scenario) -> None:
    page = driver.config.page_size
    driver.put_pages([1])
    shared = driver.match(driver.key_of([1])).device_indices
    receipt = driver.lock_pages([1])
    fresh = driver.allocate(page)
    assert fresh is not None, "one page of many is free"
    driver.write(driver.key_of([1, 2]), fresh, page)
    other = driver.insert_fresh([1, 2])
    result = driver.insert(driver.key_of([1, 2]), np.concatenate((shared, fresh)), shared=page)
    driver.unlock(receipt)
    assert result.prefix_length == 2 * page, f"INS-1: both pages were present, got {result}"
    slots = driver.device_slots(FULL)
    kept, expected = [*slots[1,], *slots[1, 2]], [*shared.tolist(), *other.slots[page:].tolist()]
    assert kept == expected, f"INS-1: expected page 1 as it was and page 2 of the other request {expected}, kept {kept}"


@clause("INS-2", bigram=True)
def test_inserting_again_changes_no_residency(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2, 3])
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    for again in (
        lambda: driver.insert_fresh([1, 2, 3]),
        lambda: driver.put_pages([1, 2, 3]),
        lambda: driver.insert_fresh([1]),
    ):
        again()
        after = residency(driver.snapshot(), driver.config)
        assert after == before, f"INS-2: inserted again, residency went from {before} to {after}"
        assert free_slots(driver.snapshot()) == free, "INS-2: the slots of the second insert are not all free again"


@clause("INS-1", "REQ-4", bigram=True)
def test_the_accepted_length_is_what_a_match_gives(driver: Scenario) -> None:
    page = driver.config.page_size
    for pages in ([1, 2, 3], [1, 2, 4, 5], [6]):
        accepted = driver.put_pages(pages).accepted_length
        assert accepted == len(pages) * page, f"INS-1: all of {pages} was to be accepted, not {accepted}"
        driver.find(pages)


# INS-4, INS-5, INS-6: inserts of requests whose first pages are before their window.


LONG = (1, 2, 3, 4)
"""The pages of a tombstone, longer than most windows."""


def put_behind_tombstone(driver: Scenario) -> list[int]:
    """Cache a prompt with one window of SWA data at its end, and none on its first four pages."""
    pages = [*LONG, *range(5, 5 + driver.window_pages)]
    driver.put_pages(pages, passed=len(LONG))
    return pages


@clause("INS-4", needs=[Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("passed", range(5))
def test_an_insert_restores_the_swa_data_inside_its_window(driver: Scenario, passed: int) -> None:
    pages = put_behind_tombstone(driver)
    before = driver.device_slots(SWA).keys()
    assert before == prefixes(*pages) - prefixes(*LONG), f"INS-6: SWA data in the window alone, got {before}"
    size = driver.config.page_size
    own = driver.insert_fresh(LONG, passed=passed)
    restored = {prefix: slots for prefix, slots in driver.device_slots(SWA).items() if prefix not in before}
    expected = {LONG[: page + 1]: tuple(own.partners[page * size :][:size].tolist()) for page in range(passed, 4)}
    assert restored == expected, f"INS-4: the window has left {passed} pages: expected {expected}, got {restored}"
    assert driver.device_slots(FULL).keys() == prefixes(*pages), "INS-4: expected the FULL data not to change"


@clause("INS-4", needs=[Capability.SNAPSHOT], page_sizes=[3, 16, 64])
def test_a_page_that_is_only_partly_in_the_window_stays_a_tombstone(driver: Scenario) -> None:
    pages = put_behind_tombstone(driver)
    key, size = driver.key_of(LONG), driver.config.page_size
    slots = driver.allocate(len(LONG) * size)
    assert slots is not None, "four pages of many are free"
    driver.release_window(slots[: 2 * size])
    driver.write(key, slots, 0)
    driver.insert(key, slots, shared=0, window_start=size + 1)
    restored = driver.device_slots(SWA).keys() - (prefixes(*pages) - prefixes(*LONG))
    expected = {LONG[:3], LONG}
    assert restored == expected, f"INS-4: the window begins inside page 2: expected {expected} restored, got {restored}"


@clause("INS-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_restored_prefix_hits_again(driver: Scenario) -> None:
    driver.make_tombstone(SWA)
    assert driver.hit_pages(TOMBSTONE) == 0, "MATCH-3: a tombstone right below the root can be the end of no match"
    driver.insert_fresh(TOMBSTONE)
    hit = driver.hit_pages(TOMBSTONE)
    assert hit == len(TOMBSTONE), f"INS-4: the restored prefix of {len(TOMBSTONE)} pages hits {hit}"


@clause("INS-4", "INS-1", needs=[Capability.SNAPSHOT])
def test_the_slots_of_a_restoring_insert_have_one_owner_each(driver: Scenario) -> None:
    driver.make_tombstone(SWA)
    free = free_slots(driver.snapshot())
    driver.insert_fresh(TOMBSTONE)
    after = free_slots(driver.snapshot())
    taken = {component: len(free[component]) - len(after[component]) for component in (FULL, SWA)}
    expected = {FULL: 0, SWA: len(TOMBSTONE) * driver.config.page_size}
    assert taken == expected, f"INS-4: FULL data was there, SWA data was not: expected {expected} taken, got {taken}"
    driver.evict_all()
    left = driver.config.capacity_tokens[SWA] - len(free_slots(driver.snapshot())[SWA])
    assert left == 0, f"INS-4: evicted again, {left} SWA slots are not free"


@clause("INS-4", "LOCK-5", needs=[Capability.SNAPSHOT])
def test_restoring_moves_no_locked_slot(driver: Scenario) -> None:
    handle = driver.make_tombstone(SWA)
    receipt = driver.lock(handle)
    before = {prefix: driver.device_slots(FULL)[prefix] for prefix in prefixes(*TOMBSTONE)}
    driver.insert_fresh(TOMBSTONE)
    after = {prefix: driver.device_slots(FULL)[prefix] for prefix in prefixes(*TOMBSTONE)}
    driver.unlock(receipt)
    assert after == before, f"LOCK-5: FULL slots under a lock went from {before} to {after}"


@clause("INS-4", "INS-2", needs=[Capability.SNAPSHOT])
def test_cached_data_is_not_replaced(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    for passed in (0, 1, 2):
        driver.insert_fresh([1, 2, 3], passed=passed)
        assert residency(driver.snapshot(), driver.config) == before, f"INS-4: window past {passed} pages replaced data"
        assert free_slots(driver.snapshot()) == free, f"INS-4: window past {passed} pages: not all slots are free again"


@clause("INS-4", needs=[Capability.SNAPSHOT])
def test_a_request_that_reads_through_a_tombstone_restores_nothing(driver: Scenario) -> None:
    pages = put_behind_tombstone(driver)
    driver.put_pages([*pages, 90])
    restored = driver.device_slots(SWA).keys() & prefixes(*LONG)
    assert not restored, f"INS-4: no request computed it: expected no new SWA data, got {restored}"


@clause("INS-5", "INS-1", components=(SWA,), needs=[Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("present", [[], [1]], ids=["nothing cached", "a prefix cached"])
def test_a_leaf_outside_the_window_is_not_created(driver: Scenario, present: list[int]) -> None:
    if present:
        driver.put_pages(present)
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    result = driver.insert_fresh([1, 2, 3], passed=3).result
    length = len(present) * driver.config.page_size
    lengths = (result.prefix_length, result.accepted_length)
    assert lengths == (length, length), f"INS-5: expected {length} present and accepted, got {lengths}"
    assert residency(driver.snapshot(), driver.config) == before, "INS-5: a leaf without SWA data was created"
    assert free_slots(driver.snapshot()) == free, "INS-5: the slots of the refused leaf are not free again"


@clause("INS-6", needs=[Capability.SNAPSHOT])
@pytest.mark.parametrize("passed", range(1, 5))
def test_a_leaf_is_split_where_the_window_begins(driver: Scenario, passed: int) -> None:
    pages = [1, 2, 3, 4, 5]
    driver.put_pages(pages, passed=passed)
    expected = prefixes(*pages) - prefixes(*pages[:passed])
    live = driver.device_slots(SWA).keys()
    assert live == expected, f"INS-6: the window has left {passed} pages: expected SWA data of {expected}, got {live}"
    assert driver.device_slots(FULL).keys() == prefixes(*pages), (
        f"INS-6: FULL data of all pages: expected {prefixes(*pages)}, got {driver.device_slots(FULL)}"
    )
    ends = driver.nodes().keys()
    assert tuple(pages[:passed]) in ends, f"INS-6: a node ends at the window's edge {pages[:passed]}, got {ends}"


@clause("INS-6", "LOCK-1", needs=[Capability.SNAPSHOT, Capability.SIZES], bigram=True)
@pytest.mark.parametrize("passed", [0, 1])
@pytest.mark.parametrize("present", [0, 1])
def test_a_lock_on_a_long_leaf_pins_one_window(driver: Scenario, present: int, passed: int) -> None:
    window = driver.window_pages
    pages = list(range(1, window + 4))
    if present:
        driver.put_pages(pages[:present])
    driver.put_pages(pages, passed=passed)
    receipt = driver.lock_pages(pages)
    pinned = {prefix for component, prefix in driver.all_locks() if component == SWA}
    protected = driver.adapter.sizes()[SWA].protected
    driver.unlock(receipt)
    expected = prefixes(*pages) - prefixes(*pages[:-window])
    assert pinned == expected, f"INS-6: a lock pins the {window} pages of one window, {expected}, it pinned {pinned}"
    tokens = window * driver.config.page_size
    assert protected == tokens, f"INS-6: {tokens} SWA tokens protected, got {protected}"


# INS-5, INS-7: when the tree adopts a state, and when the caller keeps it.


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_new_leaf_takes_the_state(driver: Scenario) -> None:
    own = driver.insert_fresh([1, 2])
    assert own.result.state_adopted, f"INS-7: a new leaf has no state yet, got {own.result}"
    states = driver.device_slots(MAMBA)
    assert states == {(1, 2): (own.state,)}, f"INS-7: expected the caller's state {own.state} at (1, 2), got {states}"


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_node_with_a_state_keeps_it(driver: Scenario) -> None:
    first = driver.insert_fresh([1, 2])
    again = driver.insert_fresh([1, 2])
    assert not again.result.state_adopted, f"INS-7: the node had a state already, got {again.result}"
    states = driver.device_slots(MAMBA)
    assert states == {(1, 2): (first.state,)}, f"INS-7: expected the first state {first.state}, got {states}"
    free = free_slots(driver.snapshot())[MAMBA]
    assert again.state in free, f"INS-7: the caller freed its own state {again.state}, free are {free}"


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_node_without_a_state_takes_one(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    assert driver.hit_pages([1, 2]) == 0, "INS-7: there is no state after page 2 yet"
    own = driver.insert_fresh([1, 2])
    assert own.result.state_adopted, f"INS-7: no node had a state after page 2, got {own.result}"
    assert driver.device_slots(MAMBA)[1, 2] == (own.state,), f"INS-7: expected state {own.state} after page 2"
    driver.verify_state(driver.key_of([1, 2]), driver.match(driver.key_of([1, 2])))


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_without_a_state_nothing_is_adopted(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    for pages in ([1, 2], [1, 2, 3], [7]):
        result = driver.insert_fresh(pages, with_state=False).result
        assert not result.state_adopted, f"INS-7: {pages} came without a state, got {result}"
    assert driver.device_slots(MAMBA).keys() == {(1, 2, 3)}, (
        f"INS-7: one state was given, {driver.device_slots(MAMBA)} are held"
    )


@clause("INS-7", "EVICT-5", components=(SWA, MAMBA))
def test_a_state_is_not_taken_where_a_higher_component_is_missing(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3], passed=2)
    own = driver.insert_fresh([1, 2], passed=2)
    assert not own.result.state_adopted, (
        f"INS-7: page 2 has no SWA data, expected no state to be adopted, got {own.result}"
    )
    assert (1, 2) not in driver.device_slots(MAMBA), "EVICT-5: a state without SWA data below it"


@clause("INS-5", needs=[Capability.SNAPSHOT], components=(MAMBA,))
@pytest.mark.parametrize("present", [[], [1]], ids=["nothing cached", "a prefix cached"])
def test_a_leaf_without_a_state_is_not_created(driver: Scenario, present: list[int]) -> None:
    if present:
        driver.put_pages(present)
    before, free = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    result = driver.insert_fresh([1, 2], with_state=False).result
    length = len(present) * driver.config.page_size
    lengths = (result.prefix_length, result.accepted_length)
    assert lengths == (length, length), f"INS-5: expected {length} present and accepted, got {lengths}"
    assert residency(driver.snapshot(), driver.config) == before, "INS-5: a leaf without a state was created"
    assert free_slots(driver.snapshot()) == free, "INS-5: the slots of the refused leaf are not free again"


@clause("INS-7", needs=[Capability.SNAPSHOT])
def test_a_state_is_valid_only_at_its_own_end(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3, 4])
    for count in range(1, 4):
        driver.match(driver.key_of([1, 2, 3, 4][:count]))
    hits = [driver.hit_pages([1, 2, 3, 4][:count]) for count in range(1, 5)]
    assert hits == [0, 0, 0, 4], f"INS-7: the one state lies after page 4, so hits must be [0, 0, 0, 4], got {hits}"


# INS-3, INS-4: inserts over nodes that are on the host alone.


WHOLE = (1, 2, 3)


def below(driver: Scenario) -> dict[str, dict[tuple[int, ...], tuple[int, ...]]]:
    """Everything that is cached on the host."""
    return {component: driver.host_slots(component) for component in driver.config.components}


def given(own: FreshInsert, pages: tuple[int, ...]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The FULL slots of an insert, by prefix."""
    parts = own.slots.reshape(len(pages), -1).tolist()
    return {pages[: count + 1]: tuple(part) for count, part in enumerate(parts)}


def require_room(driver: Scenario, pages: int, states: int) -> None:
    """The tree has so many pages and states on the device, and all other slots are free."""
    expected = {
        name: tokens - (states if name == MAMBA else pages * driver.unit(name))
        for name, tokens in driver.config.capacity_tokens.items()
    }
    free = driver.free_device_slots()
    assert free == expected, f"INS-3: {pages} pages and {states} states are cached: {expected} free, got {free}"


@clause("INS-3")
def test_an_insert_over_an_evicted_prompt_uses_its_own_slots(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = below(driver)
    own = driver.insert_fresh(WHOLE)
    expected = given(own, WHOLE)
    assert driver.device_slots(FULL) == expected, (
        f"INS-3: the device lacked it and takes {expected}, it has {driver.device_slots(FULL)}"
    )
    assert own.result.prefix_length == 0, (
        f"INS-3: none of it was on the device: expected 0 present tokens, got {own.result.prefix_length}"
    )
    if driver.has(MAMBA):
        assert driver.device_slots(MAMBA)[WHOLE] == (own.state,), f"INS-3: the state {own.state} is taken as well"
    assert below(driver) == before, f"INS-3: the copies on the host were {before} and are {below(driver)}"
    assert driver.tier_hits(WHOLE) == (3, 0), (
        f"INS-3: all of it is on the device: expected (3, 0), got {driver.tier_hits(WHOLE)}"
    )
    require_room(driver, 3, 1)


@clause("INS-3", needs=[Capability.COUNTERS])
def test_a_node_with_a_host_copy_is_not_backed_up_again(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = driver.adapter.counters()["bytes_backed_up"]
    for _ in range(2):
        driver.insert_fresh(WHOLE)
        driver.match(driver.key_of(WHOLE))
        driver.drain()
    moved = driver.adapter.counters()["bytes_backed_up"] - before
    assert moved == 0, f"INS-3: the host has all of {WHOLE}, and {moved} bytes were backed up again"


@clause("INS-3", "INS-1")
def test_an_insert_continues_below_evicted_nodes(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    longer = (*WHOLE, 4, 5)
    own = driver.insert_fresh(longer)
    expected = given(own, longer)
    assert driver.device_slots(FULL) == expected, f"INS-3: expected {expected}, got {driver.device_slots(FULL)}"
    require_room(driver, 5, 1)


@clause("INS-3", "INS-1")
def test_an_insert_adds_the_pages_that_the_device_lacks(driver: Scenario) -> None:
    driver.put_on_host([1], WHOLE)
    driver.load(driver.key_of([1]))
    there = driver.device_slots(FULL)
    own = driver.insert_fresh(WHOLE)
    expected = given(own, WHOLE) | there
    assert driver.device_slots(FULL) == expected, (
        f"INS-3: page 1 was there: {expected}, got {driver.device_slots(FULL)}"
    )
    size = driver.config.page_size
    assert own.result.prefix_length == size, f"INS-1: a page of {size} was there, got {own.result.prefix_length}"
    require_room(driver, 3, 2)


@clause("INS-3", "INS-8")
def test_an_insert_that_ends_inside_an_evicted_node_restores_its_first_pages(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = below(driver)
    own = driver.insert_fresh(WHOLE[:2])
    expected = given(own, WHOLE[:2])
    assert driver.device_slots(FULL) == expected, (
        f"INS-3: two pages came to the device: {expected}, got {driver.device_slots(FULL)}"
    )
    after = {
        component: {prefix: below(driver)[component].get(prefix) for prefix in before[component]}
        for component in before
    }
    assert after == before, f"INS-8: host slots {before} became {after} in a split"
    assert driver.tier_hits(WHOLE) == (2, 1), (
        f"INS-3: page 3 is on the host alone: expected (2, 1), got {driver.tier_hits(WHOLE)}"
    )
    require_room(driver, 2, 1)


@clause("INS-3", "INS-4", components=(SWA,), page_sizes=[16])
@pytest.mark.parametrize("passed", range(4))
def test_an_insert_over_an_evicted_node_restores_swa_data_of_its_window_alone(driver: Scenario, passed: int) -> None:
    pages = tuple(range(1, 4 + driver.window_pages))
    driver.put_on_host(pages)
    before = driver.host_slots(SWA)
    own = driver.insert_fresh(pages, passed=passed)
    assert driver.device_slots(FULL) == given(own, pages), (
        f"INS-3: all FULL slots are taken, got {driver.device_slots(FULL)}"
    )
    found, expected = driver.device_slots(SWA).keys(), prefixes(*pages) - prefixes(*pages[:passed])
    assert found == expected, f"INS-4: the window has left {passed} pages: SWA data of {expected}, got {found}"
    assert driver.host_slots(SWA) == before, "INS-3: the host's SWA data changed"


@clause("INS-4", "INS-3", components=(SWA,))
def test_swa_data_that_is_on_the_host_alone_is_restored_by_an_insert(driver: Scenario) -> None:
    driver.drop_on_device(SWA)
    before, full = below(driver), driver.device_slots(FULL)
    own = driver.insert_fresh(TOMBSTONE)
    restored = [driver.device_slots(SWA)[prefix] for prefix in sorted(prefixes(*TOMBSTONE))]
    expected = list(map(tuple, own.partners.reshape(len(TOMBSTONE), -1).tolist()))
    assert restored == expected, f"INS-4: the tombstone takes the SWA slots {expected}, it has {restored}"
    assert driver.device_slots(FULL) == full, "INS-4: FULL data was there and moved"
    assert below(driver) == before, "INS-4: the host's copies changed"
