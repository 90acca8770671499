"""EVICT-1: how much an eviction frees; it always ends."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Component

from .scenario import FULL, MAMBA, evict_all, find, hit_pages, insert_fresh, key_of, lock, put, unit
from .tree_view import nodes, snapshot_values

LEAVES = (1, 2, 3, 4)


def put_leaves(driver: Driver) -> None:
    """Cache four prompts of one page each."""
    for page in LEAVES:
        insert_fresh(driver, [page])


def amounts(driver: Driver, component: str) -> list[int]:
    """Slots to ask for: whole pages, and with several slots a page also parts of pages."""
    size = unit(driver, component)
    return sorted({1, size + 1, 3 * size})


@clause("EVICT-1", page_sizes=[1, 16], bigram=True)
def test_an_eviction_frees_the_whole_pages_that_were_asked_for(driver: Driver) -> None:
    for component in driver.config.components:
        size = unit(driver, component)
        for asked in amounts(driver, component):
            put_leaves(driver)
            expected = -(-asked // size)
            result = driver.evict(component, asked)
            freed = result.freed[component]
            assert freed == expected * size, f"EVICT-1: {asked} of {component} asked in leaves of {size}: freed {freed}"
            assert result.victims == expected, f"EVICT-1: {expected} victims suffice for {asked}, got {result}"
            hits = sum(hit_pages(driver, [page]) for page in LEAVES)
            assert hits == len(LEAVES) - expected, f"EVICT-1: {expected} of {len(LEAVES)} were to go, {hits} are left"
            evict_all(driver)


@clause("EVICT-1", bigram=True)
def test_no_victim_is_taken_after_the_last_one_needed(driver: Driver) -> None:
    size = driver.config.page_size
    for pages in ([1, 11, 12], [2, 21, 22]):
        put(driver, pages)
    driver.match(key_of(driver, [2, 21, 22]))
    result = driver.evict(FULL, 1)
    # A leaf of several pages may be cut at the window's edge; the other prompt is not touched for it.
    assert result.freed[FULL] <= 3 * size, f"EVICT-1: one slot was asked, the first prompt has 3 pages: {result}"
    find(driver, [2, 21, 22])
    assert hit_pages(driver, [1, 11, 12]) < 3, "EVICT-2: the prompt that was used last is not the first to go"


@clause("EVICT-1", bigram=True)
def test_evicting_no_slots_and_more_slots_than_are_cached(driver: Driver) -> None:
    for component in driver.config.components:
        put_leaves(driver)
        size, capacity = unit(driver, component), driver.config.capacity_tokens[component]
        for asked, expected in ((0, 0), (10 * capacity, len(LEAVES)), (capacity, 0)):
            result = driver.evict(component, asked)
            found = result.freed[component], result.victims
            assert found == (expected * size, expected), (
                f"EVICT-1: {asked} of {component} asked: {expected} go, {result}"
            )


@clause("EVICT-1", "EVICT-5", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_evicting_one_slot_at_a_time_empties_the_cache(driver: Driver) -> None:
    for component in driver.config.components:
        for pages in ([1], [1, 2], [1, 2, 3, 4], [1, 5], [6, 7]):
            insert_fresh(driver, pages)
        steps = 0
        while driver.adapter.sizes()[component].evictable:
            freed = driver.evict(component, 1).freed[component]
            assert freed, f"EVICT-1: {component} is evictable, and evicting one slot of it freed none"
            steps += 1
        assert steps >= 2, (
            f"EVICT-1: {component} is on several nodes: expected at least 2 evictions of one slot, got {steps}"
        )
        evict_all(driver)
        assert not nodes(driver), f"EVICT-1: all was evictable, {nodes(driver).keys()} is left"


@clause("EVICT-1", page_sizes=[1, 16], needs=[Capability.SIZES], bigram=True)
def test_an_allocation_evicts_only_the_missing_pages(driver: Driver) -> None:
    size = driver.config.page_size
    put_leaves(driver)
    paged = [component for component in driver.config.components if component != Component.MAMBA]
    free = min(driver.adapter.sizes()[component].free for component in paged)
    for missing in (0, 2):
        slots = driver.allocate(free + missing * size)
        assert slots is not None, f"EVICT-1: {missing} pages are missing, and evictable"
        left = sum(hit_pages(driver, [page]) for page in LEAVES)
        assert left == len(LEAVES) - missing, f"EVICT-1: {missing} pages were missing, {left} of {len(LEAVES)} are left"
        driver.free(slots)
        put_leaves(driver)


@clause("EVICT-1", "POOL-3", needs=[Capability.SIZES], bigram=True)
def test_an_allocation_that_does_not_fit_evicts_nothing(driver: Driver) -> None:
    put_leaves(driver)
    receipt = lock(driver, LEAVES[:1])
    too_much = driver.config.capacity_tokens[FULL]
    assert driver.allocate(too_much) is None, f"LOCK-5: {too_much} slots were given, though some are locked"
    left = sum(hit_pages(driver, [page]) for page in LEAVES)
    assert left == len(LEAVES), f"EVICT-1: nothing was gained by an eviction, and {left} of {len(LEAVES)} are left"
    driver.unlock(receipt)


@clause("EVICT-1", components=(MAMBA,))
def test_a_state_is_evicted_when_one_is_missing(driver: Driver) -> None:
    put_leaves(driver)
    free = driver.config.capacity_tokens[MAMBA] - len(LEAVES)
    for taken in range(1, free + 3):
        assert driver.allocate_state() is not None, (
            f"EVICT-1: {free} states are free, 4 evictable; number {taken}: None"
        )
        left, expected = sum(hit_pages(driver, [page]) for page in LEAVES), min(4, 4 + free - taken)
        assert left == expected, f"EVICT-1: {taken} states taken, {free} were free: {expected} of 4 stay, not {left}"


@clause("EVICT-1", "LOCK-5", components=(MAMBA,), needs=[Capability.SNAPSHOT])
def test_without_a_free_or_evictable_state_the_answer_is_none(driver: Driver) -> None:
    put_leaves(driver)
    anchors = [find(driver, [page]) for page in LEAVES]
    receipts = [driver.lock(anchor) for anchor in anchors]
    list(iter(driver.allocate_state, None))
    before = snapshot_values(driver.snapshot())
    answers = driver.allocate_state(), driver.fork_state(anchors[0]), driver.evict(MAMBA, 1).victims
    assert answers == (None, None, 0), f"EVICT-1: every state is held or locked; allocate, fork, evict gave {answers}"
    assert snapshot_values(driver.snapshot()) == before, "EVICT-1: a state that cannot be had changed the cache"
    for receipt in receipts:
        driver.unlock(receipt)


@clause("EVICT-1", "LOCK-5", bigram=True)
def test_when_everything_is_locked_no_verb_raises(driver: Driver) -> None:
    put_leaves(driver)
    receipts = [lock(driver, [page]) for page in LEAVES]
    for component in driver.config.components:
        result = driver.evict(component, unit(driver, component))
        assert (result.victims, result.freed[component]) == (0, 0), f"EVICT-1: all is locked, yet {result}"
    for page in LEAVES:
        find(driver, [page])
    for receipt in receipts:
        driver.unlock(receipt)
