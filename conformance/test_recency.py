"""MATCH-10: a match makes the nodes that it uses the most recent; observed through the next evictions."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import FULL, MAMBA, SWA, find, open_with_window, put, unit, window_pages
from .tree_view import Pages, device_slots, prefixes


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_matched_leaf_is_evicted_last(driver: Driver) -> None:
    for page in (1, 2, 3):
        put(driver, [page])
    find(driver, [1])
    for left in ({(1,), (3,)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_nodes_below_the_match_are_not_refreshed(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    put(driver, [3])
    find(driver, [1])
    for left in ({(1,), (3,)}, {(1,)}):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_matched_chain_is_evicted_from_its_end(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    put(driver, [3])
    find(driver, [1, 2])
    for left in ({(1,), (1, 2)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-10", components=[MAMBA], needs=[Capability.SNAPSHOT])
def test_the_matched_state_nearest_to_the_root_is_the_oldest(driver: Driver) -> None:
    for pages in ([1], [1, 2], [1, 2, 3], [9]):
        put(driver, pages)
    find(driver, [1, 2, 3])
    for left in (prefixes(1, 2, 3), {(1, 2), (1, 2, 3)}, {(1, 2, 3)}):
        _evict_one(driver, MAMBA)
        _require_left(driver, MAMBA, left)


@clause("MATCH-10", components=[MAMBA], needs=[Capability.SNAPSHOT])
def test_a_match_refreshes_no_state_below_it(driver: Driver) -> None:
    for pages in ([1], [1, 2], [9]):
        put(driver, pages)
    find(driver, [1])
    for left in ({(1,), (9,)}, {(1,)}):
        _evict_one(driver, MAMBA)
        _require_left(driver, MAMBA, left)


@clause("MATCH-10", components=[SWA], needs=[Capability.SNAPSHOT], bigram=True)
def test_the_matched_window_data_nearest_to_the_root_is_the_oldest(driver: Driver) -> None:
    wide = open_with_window(driver, 3)
    for pages in ([1], [1, 2], [1, 2, 3], [9]):
        put(wide, pages)
    find(wide, [1, 2, 3])
    for left in (prefixes(1, 2, 3), {(1, 2), (1, 2, 3)}, {(1, 2, 3)}):
        _evict_one(wide, SWA)
        _require_left(wide, SWA, left)


@clause("MATCH-10", components=[SWA], needs=[Capability.SNAPSHOT], bigram=True)
def test_data_before_the_window_is_not_refreshed(driver: Driver) -> None:
    longer = list(range(1, 2 + window_pages(driver.config)))
    put(driver, [1])
    put(driver, longer)
    put(driver, [99])
    find(driver, longer)
    in_window = prefixes(*longer) - {(1,)}
    for left in ({*in_window, (99,)}, in_window):
        _evict_one(driver, SWA)
        _require_left(driver, SWA, left)


def _evict_one(driver: Driver, component: str) -> None:
    driver.evict(component, unit(driver, component))


def _require_left(driver: Driver, component: str, expected: AbstractSet[Pages]) -> None:
    left = set(device_slots(driver, component))
    assert left == expected, f"MATCH-10: {component}: expected {sorted(expected)} to be left, got {sorted(left)}"
