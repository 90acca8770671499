"""MATCH-15: a match ends at a node that all components accept."""

from __future__ import annotations

import pytest

from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import hit_pages, key_of, open_with_window, put

WINDOW = 3
"""Pages of the window in these tests."""


@clause("MATCH-15", page_sizes=[1, 16])
@pytest.mark.parametrize("cut", [3, 4, 5])
def test_the_window_run_counts_across_a_node_without_a_state(driver: Driver, cut: int) -> None:
    # Two tombstones, then four pages with SWA data and one state, at their end. A split leaves a node without a state
    # in between: MAMBA refuses it, and its pages count for the window all the same.
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2, 3, 4, 5, 6], passed=2)
    assert hit_pages(wide, [*range(1, cut + 1), 9]) == 0, f"MATCH-4: there is no state after {cut} pages"
    found = hit_pages(wide, [1, 2, 3, 4, 5, 6])
    assert found == 6, f"MATCH-15: four pages end with a state, {WINDOW} are the window: 6 expected, found {found}"


@clause("MATCH-15")
def test_a_tombstone_without_a_state_resets_the_window_run(driver: Driver) -> None:
    # Two pages, two tombstones without a state, two pages: each component must see the middle to know that the last two
    # pages are all that the window has.
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2])
    result = put(wide, [1, 2, 3, 4, 5, 6], passed=4)
    found = hit_pages(wide, [1, 2, 3, 4, 5, 6])
    assert found == 2, f"MATCH-15: a run of 2 pages is shorter than {WINDOW}: 2 pages expected, found {found}"
    expected = 2 * driver.config.page_size
    assert result.accepted_length == expected, f"MATCH-15: the insert accepted {result.accepted_length}, not {expected}"


@clause("MATCH-15")
@pytest.mark.parametrize(("passed", "expected"), [(2, 5), (3, 0)])
def test_a_state_is_valid_only_with_its_window(driver: Driver, passed: int, expected: int) -> None:
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2, 3, 4, 5], passed=passed)
    found = hit_pages(wide, [1, 2, 3, 4, 5])
    assert found == expected, f"MATCH-15: {5 - passed} pages for a window of {WINDOW}: {expected} expected, got {found}"


@clause("MATCH-15")
def test_a_match_finds_the_deepest_node_that_all_components_accept(driver: Driver) -> None:
    # After 2 pages all agree; after 4 only the window is there; after 5, without a state as well; after 7 all agree.
    wide = open_with_window(driver, 1)
    put(wide, [1, 2])
    put(wide, [1, 2, 3, 4, 5, 6, 7])
    for cut, expected in {4: 2, 5: 2, 7: 7, 2: 2, 1: 0}.items():
        found = hit_pages(wide, [*range(1, cut + 1), 9])
        assert found == expected, f"MATCH-15: {cut} pages and another: {expected} expected, found {found}"


@clause("MATCH-15", "MATCH-13")
@pytest.mark.parametrize(("shared", "expected"), [(4, None), (5, 5)])
def test_a_state_is_requested_only_where_the_window_is_cached(
    driver: Driver, shared: int, expected: int | None
) -> None:
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2, 3, 4, 5, 6], passed=2)
    found = wide.match(key_of(wide, [*range(1, shared + 1), 9])).branching_seqlen
    page, chunk = driver.config.page_size, driver.config.mamba_chunk_size or 1
    wanted = None if expected is None else expected * page // chunk * chunk
    assert found == wanted, f"MATCH-15: {shared} pages shared, two of them tombstones: expected {wanted}, got {found}"
