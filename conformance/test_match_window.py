"""MATCH-3: a prefix is valid for sliding-window layers if the last window before its end is cached."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    has,
    hit_pages,
    longer_prompt,
    make_tombstone,
    open_standard,
    open_variant,
    put,
    recompute,
    window_pages,
)

WINDOWS = {1: 4, 3: 5, 16: 24, 64: 48}
"""Windows by page size. Some end inside a page; the last is shorter than a page."""

GONE = 2
"""The number of first pages of a prompt without SWA data."""


@clause("MATCH-3", page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "part"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_run_of_window_data_counts_from_one_window_on(driver: Driver, window: int, whole: bool) -> None:
    page = driver.config.page_size
    wide = open_variant(driver, sliding_window_size=window * page - (0 if whole else page // 2))
    prompt = list(range(1, GONE + window + 3))
    put(wide, prompt, passed=GONE)
    for count in range(len(prompt), 0, -1):
        is_valid = count >= GONE + window and (count == len(prompt) or not has(wide, MAMBA))
        expected = count if is_valid else 0
        found = hit_pages(wide, prompt[:count])
        assert found == expected, f"MATCH-3: {count} pages, the first {GONE} tombstones: {expected}, found {found}"


@clause("MATCH-3", bigram=True)
def test_a_run_shorter_than_the_window_counts_when_it_reaches_the_root(driver: Driver) -> None:
    wide = open_variant(driver, sliding_window_size=3 * driver.config.page_size)
    for count in (1, 2, 3, 4):
        put(wide, [1, 2, 3, 4][:count])
        found = hit_pages(wide, [1, 2, 3, 4][:count])
        assert found == count, f"MATCH-3: all {count} pages have window data, {found} were found"


@clause("MATCH-3", page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize(("tail", "expected"), [(1, 2), (2, 2), (3, 7), (4, 8)])
def test_a_tombstone_resets_the_run_to_zero(driver: Driver, tail: int, expected: int) -> None:
    # Two pages with data, two without, and a tail with data: the first two do not count for the tail's window of three.
    wide = open_variant(driver, sliding_window_size=3 * driver.config.page_size)
    put(wide, [1, 2])
    prompt = [1, 2, *range(3, 5 + tail)]
    put(wide, prompt, passed=4)
    found = hit_pages(wide, prompt)
    assert found == expected, f"MATCH-3: a tail of {tail} pages after a tombstone: {expected} expected, found {found}"


@clause("MATCH-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_evicted_window_data_ends_a_match_until_it_is_recomputed(driver: Driver) -> None:
    make_tombstone(driver, SWA)
    longer = longer_prompt(driver)
    assert hit_pages(driver, TOMBSTONE) == 0, f"MATCH-3: {TOMBSTONE} lost its window"
    assert hit_pages(driver, longer) == len(longer), f"MATCH-3: {longer} ends with a whole window"
    recompute(driver)
    found = hit_pages(driver, TOMBSTONE)
    assert found == len(TOMBSTONE), f"MATCH-3: {TOMBSTONE} has its window again, {found} were found"


@clause("MATCH-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_window_data_without_the_full_data_before_it_is_not_matched(driver: Driver) -> None:
    prompt = list(range(1, GONE + window_pages(driver.config) + 1))
    put(driver, prompt, passed=GONE)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    found = hit_pages(driver, prompt)
    assert found == 0, f"MATCH-3: nothing is cached any more, {found} were found"


@clause("MATCH-3", needs=[Capability.REQUESTS, Capability.PAGED, Capability.BIGRAM])
@pytest.mark.parametrize("differs", [False, True], ids=["again", "other end"])
@pytest.mark.parametrize("is_bigram", [False, True], ids=["tokens", "bigrams"])
@pytest.mark.parametrize("page", [1, 3, 16, 64])
def test_the_prompt_of_a_long_request_is_found_up_to_its_last_page(
    adapter_type: type[CacheAdapter], page: int, is_bigram: bool, differs: bool
) -> None:
    # A prompt of whole pages ends inside its last one, as a request computes its last token itself. A request that went
    # on beyond, and kept one window before its own end and no more, would leave such a prompt nothing.
    driver = open_standard(
        adapter_type,
        "full+swa/page16/lru",
        page_size=page,
        capacity_tokens={FULL: 24 * page, SWA: 16 * page},
        sliding_window_size=WINDOWS[page],
        bigram=is_bigram,
    )
    prompt = driver.prompt(range(1, window_pages(driver.config) + 5))
    first = driver.admit(driver.key(prompt))
    assert first is not None, "REQ-5: a request fits an empty cache"
    for token in range(driver.config.page_size - 1):
        driver.extend(first.request, [token])
    driver.finish(first.request)
    again = driver.admit(driver.key([*prompt[:-1], 9] if differs else prompt))
    assert again is not None, "REQ-5: a prompt that was served once fits again"
    expected = (window_pages(driver.config) + 3) * driver.config.page_size
    assert again.cached_tokens == expected, f"MATCH-3: expected {expected} cached, got {again.cached_tokens}"
    driver.abort(again.request)
