"""REQ-1: what a request caches, at its end and after each chunk."""

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
    key_of,
    put,
    run_request,
    tokens_in_pages,
)
from .tree_view import device_slots, locks, prefixes

LOOKING = (Capability.SNAPSHOT, Capability.SIZES)
PROMPT = (1, 2, 3, 4, 5, 6)


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_a_finished_request_leaves_its_prompt_and_nothing_else(driver: Driver) -> None:
    assert run_request(driver, PROMPT) == 0, "REQ-1: nothing is cached yet"
    require_requests_released(driver, "a request finished")
    assert device_slots(driver, FULL).keys() == prefixes(*PROMPT), (
        f"REQ-1: {PROMPT} was to be cached: expected {prefixes(*PROMPT)}, got {device_slots(driver, FULL)}"
    )
    find(driver, PROMPT)


@clause("REQ-1", needs=LOOKING, page_sizes=[3, 16, 64], bigram=True)
def test_the_tail_after_the_last_whole_page_is_freed(driver: Driver) -> None:
    admission = admit(driver, PROMPT, tail=2)
    driver.finish(admission.request)
    require_requests_released(driver, "a request with a tail finished")
    # With MAMBA its state is that after the tail, so there is none for the last whole page.
    expected = set() if has(driver, MAMBA) else prefixes(*PROMPT)
    cached = device_slots(driver, FULL).keys()
    assert cached == expected, f"REQ-1: expected {expected} cached of {PROMPT} and two tokens, got {cached}"


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_each_chunk_is_cached_and_protected(driver: Driver) -> None:
    admission = admit(driver, PROMPT)
    for count in (2, 4, 6):
        driver.checkpoint(admission.request, tokens_in_pages(driver, count))
        evict_all(driver)
        found = device_slots(driver, FULL).keys()
        assert found == prefixes(*PROMPT[:count]), f"REQ-1: {count} pages are computed, cached are {found}"
        hit = hit_pages(driver, PROMPT)
        assert hit == count, f"REQ-1: {count} pages are computed and hit, found were {hit}"
        counts = {prefix: number for (component, prefix), number in locks(driver).items() if component == FULL}
        expected = dict.fromkeys(prefixes(*PROMPT[:count]), 1)
        assert counts == expected, f"REQ-1: the lock moved to {count} pages, each is held once: {counts}"
    driver.finish(admission.request)
    require_requests_released(driver, "a request in three chunks finished")


@clause("REQ-1", needs=LOOKING, components=(SWA,))
def test_the_window_moves_with_the_chunks(driver: Driver) -> None:
    admission = admit(driver, PROMPT)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 1))
    driver.checkpoint(admission.request, tokens_in_pages(driver, 6))
    evict_all(driver)
    driver.finish(admission.request)
    require_requests_released(driver, "a request of two windows finished")
    assert hit_pages(driver, PROMPT) == 6, "REQ-1: the last window was held, and the prompt hits"


@clause("REQ-1", needs=LOOKING, page_sizes=[3, 16, 64], bigram=True)
def test_chunks_may_end_inside_a_page(driver: Driver) -> None:
    admission = admit(driver, PROMPT)
    for tokens in (tokens_in_pages(driver, 2) - 1, tokens_in_pages(driver, 2) + 1, tokens_in_pages(driver, 5) + 1):
        driver.checkpoint(admission.request, tokens)
        whole = (tokens - tokens_in_pages(driver, 0)) // driver.config.page_size
        # With MAMBA there is a state for the last whole page only when the chunk ends there.
        expected = 0 if has(driver, MAMBA) else whole
        hit = hit_pages(driver, PROMPT)
        assert hit == expected, f"REQ-1: {tokens} tokens are computed: expected {expected} pages cached, hit {hit}"
    driver.finish(admission.request)
    require_requests_released(driver, "a request finished whose chunks ended inside pages")
    assert hit_pages(driver, PROMPT) == 6, "REQ-1: all of the prompt was computed in the end"


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_a_checkpoint_without_progress_changes_nothing(driver: Driver) -> None:
    admission = admit(driver, PROMPT)
    first = driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    before = device_slots(driver, FULL), locks(driver), driver.adapter.sizes()
    second = driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    assert second.tolist() == first.tolist(), f"REQ-1: nothing was computed, the table went from {first} to {second}"
    after = device_slots(driver, FULL), locks(driver), driver.adapter.sizes()
    assert after == before, f"REQ-1: nothing was computed, the cache went from {before} to {after}"
    driver.finish(admission.request)


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_two_requests_for_one_prompt_keep_one_copy(driver: Driver) -> None:
    admissions = [admit(driver, PROMPT[:3]) for _ in range(2)]
    for admission in admissions:
        driver.finish(admission.request)
    require_requests_released(driver, "two requests for one prompt finished")
    stored = driver.adapter.sizes()[FULL].evictable
    assert stored == 3 * driver.config.page_size, f"REQ-1: three pages are kept once, {stored} slots are held"


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_decoded_tokens_are_cached_with_the_prompt(driver: Driver) -> None:
    admission = admit(driver, PROMPT[:2])
    decode(driver, admission, PROMPT[2:])
    driver.finish(admission.request)
    require_requests_released(driver, "a request that decoded finished")
    find(driver, PROMPT)


@clause("REQ-1", "LOCK-5", needs=LOOKING, page_sizes=[1, 16])
@pytest.mark.parametrize("end", ["finish", "abort"])
def test_the_end_of_one_request_leaves_the_lock_of_another(driver: Driver, end: str) -> None:
    put(driver, PROMPT[:2])
    first, second = admit(driver, [*PROMPT[:2], 8]), admit(driver, [*PROMPT[:2], 9])
    (driver.finish if end == "finish" else driver.abort)(first.request)
    evict_all(driver)
    hit = hit_pages(driver, PROMPT[:2])
    assert hit == 2, f"LOCK-5: another request reads these two pages, {hit} are left"
    driver.match(key_of(driver, [*PROMPT[:2], 9]))
    driver.finish(second.request)
    require_requests_released(driver, "both requests ended")
