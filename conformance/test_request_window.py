"""REQ-1, REQ-3, REQ-5 with SWA: requests that are longer than their window."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import require_requests_released
from .scenario import (
    FULL,
    MAMBA,
    SWA,
    admit,
    decode,
    evict_all,
    find,
    has,
    hit_pages,
    run_request,
    tokens_in_pages,
    unit,
    window_pages,
)
from .tree_view import device_slots, locks, prefixes

LOOKING = (Capability.SNAPSHOT, Capability.SIZES, Capability.REQUESTS)
LONG = tuple(range(1, 19))
"""A prompt of more pages than the SWA pool has."""


def swa_pages(driver: Driver) -> int:
    """Pages of the SWA pool that are not free."""
    size = driver.config.page_size
    return (driver.config.capacity_tokens[SWA] - driver.adapter.sizes()[SWA].free) // size


@clause("REQ-5", "POOL-5", needs=LOOKING, components=(SWA,), bigram=True)
def test_a_request_decodes_further_than_its_window(driver: Driver) -> None:
    admission = admit(driver, LONG[:2])
    for page in LONG[2:]:
        decode(driver, admission, [page])
        used, most = swa_pages(driver), window_pages(driver.config) + 3
        assert used <= most, f"REQ-5: one request with a window of {most - 3} pages holds {used} pages of SWA"
    assert len(LONG) * unit(driver, SWA) > driver.config.capacity_tokens[SWA], "the request outgrew the SWA pool"
    driver.finish(admission.request)
    require_requests_released(driver, "a request finished that was longer than the SWA pool")
    find(driver, LONG)


@clause("REQ-3", "INS-6", needs=LOOKING, components=(SWA,), page_sizes=[1, 16, 64], bigram=True)
@pytest.mark.parametrize("chunk", [1, 5])
def test_pages_before_the_window_are_cached_as_tombstones(driver: Driver, chunk: int) -> None:
    admission = admit(driver, LONG[:chunk])
    driver.checkpoint(admission.request, tokens_in_pages(driver, chunk))
    decode(driver, admission, LONG[chunk:12])
    driver.checkpoint(admission.request, tokens_in_pages(driver, 12))
    live = device_slots(driver, SWA).keys()
    window = prefixes(*LONG[:12]) - prefixes(*LONG[: 12 - window_pages(driver.config)])
    assert window <= live, f"INS-6: the last window is {window}, SWA data is there of {live}"
    assert device_slots(driver, FULL).keys() == prefixes(*LONG[:12]), (
        f"REQ-1: all 12 pages are cached: {device_slots(driver, FULL)}"
    )
    if not has(driver, MAMBA):
        other = admit(driver, LONG[:13])
        assert other.cached_tokens == 12 * driver.config.page_size, f"REQ-4: 12 pages are cached, {other}"
        driver.finish(other.request)
    driver.finish(admission.request)
    require_requests_released(driver, "requests finished beyond their window")


@clause("REQ-4", "REQ-3", needs=LOOKING, components=(SWA,), bigram=True)
def test_an_inserted_prompt_of_any_length_hits_at_once(driver: Driver) -> None:
    admission = admit(driver, LONG[:1])
    for count in range(2, 10):
        decode(driver, admission, LONG[count - 1 : count])
        driver.checkpoint(admission.request, tokens_in_pages(driver, count))
        hit = hit_pages(driver, LONG[:count])
        assert hit == count, f"REQ-4: {count} pages were inserted, a match right after finds {hit}"
    driver.abort(admission.request)
    require_requests_released(driver, "a request was aborted beyond its window")


@clause("REQ-4", "REQ-3", needs=LOOKING, components=(SWA,), bigram=True)
@pytest.mark.parametrize("pages", [3, 6])
def test_the_last_window_stays_one_token_past_the_last_page(driver: Driver, pages: int) -> None:
    admission = admit(driver, LONG[:pages])
    assert driver.extend(admission.request, [7]) is not None, "REQ-5: there is room for one token more"
    driver.checkpoint(admission.request, tokens_in_pages(driver, pages))
    hit = hit_pages(driver, LONG[:pages])
    assert hit == pages, f"REQ-4: one token was decoded, {pages} pages were inserted, a match right after finds {hit}"
    driver.finish(admission.request)
    require_requests_released(driver, "a request finished one token past its last page")


@clause("LOCK-8", "EVICT-4", needs=LOOKING, components=(SWA,), bigram=True)
def test_evictions_of_swa_data_leave_a_running_request_intact(driver: Driver) -> None:
    admission = admit(driver, LONG[:4])
    driver.checkpoint(admission.request, tokens_in_pages(driver, 4))
    for page in LONG[4:12]:
        decode(driver, admission, [page])
        evict_all(driver)
    assert locks(driver)[FULL, LONG[:4]] == 1, f"REQ-1: the request reads its prompt yet, locks are {locks(driver)}"
    driver.checkpoint(admission.request, tokens_in_pages(driver, 12))
    evict_all(driver)
    assert hit_pages(driver, LONG[:12]) == 12, "REQ-1: what the request reads was evicted"
    driver.finish(admission.request)
    require_requests_released(driver, "a request finished under pressure on its window")


@clause("REQ-3", "INS-4", needs=LOOKING, components=(SWA,))
def test_a_resent_prompt_after_its_window_moved_on_is_computed_again(driver: Driver) -> None:
    admission = admit(driver, LONG[:2])
    decode(driver, admission, LONG[2:10])
    driver.finish(admission.request)
    evict_free = device_slots(driver, SWA).keys() & prefixes(*LONG[:2])
    found = run_request(driver, LONG[:3])
    assert found == 0 or evict_free, f"MATCH-3: pages 1 and 2 have no SWA data, {found} tokens were given as a hit"
    require_requests_released(driver, "a prompt was sent again")
    if has(driver, MAMBA):
        return
    assert hit_pages(driver, LONG[:3]) == 3, "INS-4: the prompt was computed again, and brought its SWA data back"
