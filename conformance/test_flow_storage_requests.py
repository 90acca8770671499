"""REQ-2, FETCH-8: requests with a prefetch before their admission."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Key

from .checks import require_all_evictable, require_requests_released
from .scenario import key_of, put, tokens_in_pages, window_tokens
from .storage_scenes import (
    OTHER,
    PREFETCH_STAGES,
    PREFIXES,
    PROMPT,
    PrefetchStage,
    begin_prefetch,
    expected_pages,
    prefetch,
    prefetched_pages,
    put_in_storage_alone,
    storage_variant,
)

REQUESTS = [Capability.REQUESTS, Capability.STORAGE]


def arriving(driver: Driver, tokens: list[int]) -> Key:
    """The part of a prompt that an admission can use: the last token is always computed."""
    return driver.key(tokens[:-1])


@clause("REQ-3", "FETCH-4", needs=REQUESTS)
def test_a_request_uses_what_was_prefetched(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    tokens = [*driver.prompt(PROMPT), 7]
    ticket = driver.prefetch(arriving(driver, tokens))
    assert ticket is not None, "FETCH-1: four pages are lacking"
    driver.drain()
    brought = prefetched_pages(driver, ticket)
    admission = driver.admit(driver.key(tokens))
    assert admission is not None, "REQ-5: the request fits"
    assert brought == len(PROMPT), f"FETCH-4: all whole pages are in storage, {brought} came"
    assert admission.cached_tokens == tokens_in_pages(driver, len(PROMPT)), f"FLOW-10: {brought} came, got {admission}"
    driver.drain()
    if admission.loading:
        assert driver.resume(admission.request) is not None, "FLOW-4: its load has ended"
    driver.finish(admission.request)
    driver.drain()
    require_requests_released(driver, "the request has ended")


@clause("FETCH-4", "FLOW-10", needs=REQUESTS)
def test_a_prefetch_brings_only_the_pages_that_admission_can_use(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    tokens = driver.prompt(PROMPT)
    ticket = driver.prefetch(arriving(driver, tokens))
    assert ticket is not None, "FETCH-1: three pages are lacking"
    driver.drain()
    brought = prefetched_pages(driver, ticket)
    expected = len(PROMPT) - 1
    assert brought == expected, f"FETCH-4: the last token is computed: {expected} pages are of use, {brought} came"
    admission = driver.admit(driver.key(tokens))
    assert admission is not None, "REQ-5: the request fits"
    # A window or a state past the usable part could not be used.
    assert admission.cached_tokens == tokens_in_pages(driver, expected), f"FLOW-10: {expected} came, got {admission}"
    driver.abort(admission.request)
    driver.drain()


@PREFETCH_STAGES
@clause("REQ-2", "FETCH-8", needs=[*REQUESTS, Capability.STEPPED, Capability.SIZES], page_sizes=[16])
def test_a_request_aborted_during_its_prefetch_leaves_nothing_held(driver: Driver, stage: PrefetchStage) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    stage(driver)
    driver.abort_prefetch(ticket)
    driver.drain()
    require_all_evictable(driver, f"after a request that was gone while it was {stage.__name__}")


@PREFETCH_STAGES
@clause("REQ-2", "FETCH-4", needs=[*REQUESTS, Capability.STEPPED, Capability.SIZES], page_sizes=[16])
def test_a_request_admitted_before_its_prefetch_ends_uses_none_of_it(driver: Driver, stage: PrefetchStage) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    ticket = begin_prefetch(driver, PROMPT)
    stage(driver)
    admission = driver.admit(driver.key([*driver.prompt(PROMPT), 7]))
    assert admission is not None, "REQ-5: the request fits"
    assert admission.cached_tokens == 0, f"FETCH-4: nothing was taken over, cached are {admission.cached_tokens}"
    driver.finish(admission.request)
    driver.drain()
    assert prefetched_pages(driver, ticket) == len(PROMPT), (
        "FETCH-4: expected all pages of the prompt to count, whoever computed or prefetched them"
    )
    require_all_evictable(driver, "after both have ended")


@pytest.mark.parametrize("pages", [1, 2, 3])
@clause("FETCH-6", "FETCH-4", components=("swa",), page_sizes=[16])
def test_windows_of_any_length_are_prefetched(driver: Driver, pages: int) -> None:
    with storage_variant(driver, sliding_window_size=window_tokens(driver.config, pages)) as other:
        put_in_storage_alone(other, *PREFIXES)
        for wanted in PREFIXES:
            other.reset()
            expected, came = expected_pages(other, wanted), prefetch(other, wanted)
            assert came == expected == len(wanted), f"FETCH-6: all of {wanted} is in storage, {came} pages came"
            other.load(key_of(other, wanted))
        other.drain()


@clause("REQ-2", "FLOW-4", needs=[*REQUESTS, Capability.SIZES], page_sizes=[16])
def test_a_full_device_does_not_stop_a_prefetch(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    put(driver, OTHER)
    receipt = driver.lock(driver.match(key_of(driver, OTHER)).device_anchor)
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: storage gives to the host, where there is room"
    driver.unlock(receipt)
