"""INS-8: a split does not change slots, locks, hits, hashes, priority or age."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import EvictionPolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import EventKind

from .scenario import FULL, SWA, evict_all, insert_fresh, key_of, lock, put, window_pages
from .tree_view import device_slots, locks, nodes, prefixes, residency

WHOLE = (1, 2, 3, 4, 5, 6)

Split = Callable[[Driver, int], object]


def by_match(driver: Driver, pages: int) -> None:
    """Match a prompt that ends inside the node."""
    driver.match(key_of(driver, WHOLE[:pages]), chunked=True)


def by_insert(driver: Driver, pages: int) -> None:
    """Insert a prompt that diverges inside the node."""
    insert_fresh(driver, [*WHOLE[:pages], 9])


SPLITS = pytest.mark.parametrize("split", [by_match, by_insert])


@clause("INS-8", bigram=True)
@SPLITS
def test_a_split_leaves_all_slots_where_they_are(driver: Driver, split: Split) -> None:
    put(driver, WHOLE)
    before = residency(driver.snapshot(), driver.config)
    for pages in (3, 1, 5):
        split(driver, pages)
    after = residency(driver.snapshot(), driver.config)
    changed = {place for place, slots in before.items() if after.get(place) != slots}
    assert not changed, f"INS-8: {changed} changed in a split"
    ends = nodes(driver).keys()
    assert {WHOLE[:1], WHOLE[:3], WHOLE[:5], WHOLE} <= ends, f"INS-8: nodes end at pages 1, 3, 5 and 6, not {ends}"


@clause("INS-8", "EVICT-1", components=(SWA,), bigram=True)
@SPLITS
def test_both_parts_can_be_evicted(driver: Driver, split: Split) -> None:
    put(driver, WHOLE)
    for pages in (1, 3):
        split(driver, pages)
    receipt = lock(driver, WHOLE)
    evict_all(driver, SWA)
    kept = device_slots(driver, SWA).keys()
    driver.unlock(receipt)
    expected = prefixes(*WHOLE) - prefixes(*WHOLE[: -window_pages(driver.config)])
    assert kept == expected, f"INS-8: the window {expected} is locked and all else was to go, kept was {kept}"


@clause("INS-8", page_sizes=[1, 16, 64], bigram=True)
@SPLITS
def test_a_split_leaves_all_locks_where_they_are(driver: Driver, split: Split) -> None:
    put(driver, WHOLE)
    receipts = [lock(driver, WHOLE), lock(driver, WHOLE)]
    before = locks(driver)
    assert before[FULL, WHOLE] == 2, f"LOCK-1: two receipts hold the end: expected 2, got {before}"
    for pages in (3, 1, 5):
        split(driver, pages)
        after = locks(driver)
        assert after == before, f"INS-8: locks went from {before} to {after} in a split after page {pages}"
    for receipt in receipts:
        driver.unlock(receipt)
    assert not locks(driver), f"INS-8: receipts that cross the split were released, and {locks(driver)} is left"


@clause("INS-8", needs=[Capability.HITS], page_sizes=[1, 16], bigram=True)
@SPLITS
def test_both_parts_keep_their_hits(driver: Driver, split: Split) -> None:
    put(driver, WHOLE)
    for _ in range(3):
        driver.match(key_of(driver, WHOLE))
    split(driver, 2)
    hits = {pages: nodes(driver)[pages].hits for pages in (WHOLE[:2], WHOLE)}
    assert hits == {WHOLE[:2]: 3, WHOLE: 3}, f"INS-8: three requests hit both parts, got {hits}"


@clause("INS-8", "KEY-5", needs=[Capability.EVENTS, Capability.HASHES], bigram=True)
def test_both_parts_keep_their_page_hashes(driver: Driver) -> None:
    put(driver, WHOLE)
    by_match(driver, 2)
    by_match(driver, 3)
    put(driver, [*WHOLE[:3], 9])
    evict_all(driver)
    events = [event for event in driver.adapter.events() if event.component == FULL]
    blocks = {kind: sorted(b for event in events if event.kind is kind for b in event.blocks) for kind in EventKind}
    prompts = (WHOLE, [*WHOLE[:3], 9])
    expected = sorted({block for pages in prompts for block in driver.adapter.page_hashes(key_of(driver, pages))})
    assert blocks[EventKind.STORED] == expected, "INS-8: a leaf below a split node was stored under other page hashes"
    assert blocks[EventKind.REMOVED] == expected, "INS-8: the parts of a split node were removed under other hashes"


@clause("INS-8", needs=[Capability.POLICIES], policies=[EvictionPolicy.PRIORITY])
def test_both_parts_keep_their_priority(driver: Driver) -> None:
    put(driver, [1, 2, 3, 4], priority=5)
    put(driver, [8], priority=3)
    driver.match(key_of(driver, [1, 2]))
    insert_fresh(driver, [1, 2])
    receipt = lock(driver, [8])
    driver.evict(FULL, driver.config.page_size)
    driver.unlock(receipt)
    kept = device_slots(driver, FULL).keys()
    assert kept == {(1,), (1, 2), (8,)}, f"EVICT-2: the lower part was the only leaf without a lock, left is {kept}"
    driver.evict(FULL, driver.config.page_size)
    kept = device_slots(driver, FULL).keys()
    assert kept == {(1,), (1, 2)}, f"INS-8: the upper part has priority 5, and 8 has 3: 8 must go first, left is {kept}"


@clause("INS-8", needs=[Capability.POLICIES], policies=[EvictionPolicy.FIFO, EvictionPolicy.FILO])
def test_both_parts_keep_their_age(driver: Driver) -> None:
    for pages in ([7], [1, 2, 3, 4], [8]):
        put(driver, pages)
    driver.match(key_of(driver, [1, 2]))
    insert_fresh(driver, [1, 2])
    is_fifo = driver.config.policy is EvictionPolicy.FIFO
    ends = [(1, 2, 3, 4), (1, 2)]
    order = [(7,), *ends, (8,)] if is_fifo else [(8,), *ends, (7,)]
    for number, end in enumerate(order):
        driver.evict(FULL, 1)
        left = set(order) & nodes(driver).keys()
        assert left == set(order[number + 1 :]), f"INS-8: expected {end} to go after {order[:number]}, left is {left}"


@clause("INS-8", "KEY-1", page_sizes=[3, 16, 64], bigram=True)
@pytest.mark.parametrize("page", [1, 2, 3])
def test_nodes_are_split_at_page_boundaries_only(driver: Driver, page: int) -> None:
    tokens = driver.prompt([1, 2, 3])
    driver.put(driver.key(tokens))
    other = list(tokens)
    other[page * driver.config.page_size - 1] += 1000
    driver.put(driver.key(other))
    cached = [place for place in residency(driver.snapshot(), driver.config) if place[0] == FULL]
    expected = 3 + 3 - (page - 1)
    assert len(cached) == expected, f"INS-8: two prompts of 3 pages that part inside page {page} are {expected} pages"
    for prompt in (tokens, other):
        hit = len(driver.match(driver.key(prompt)).device_indices)
        assert hit == 3 * driver.config.page_size, f"INS-8: a prompt of 3 pages hits {hit} tokens after it was split"
