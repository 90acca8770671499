"""REQ-3: a request reads only bytes that were written for its own prefix. The driver compares the bytes."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import COMPONENT_POOL, Pool

from .scenario import (
    MAMBA,
    admit,
    decode,
    evict_all,
    find,
    hit_pages,
    key_of,
    put,
    put_prefixes,
    run_request,
    tokens_in_pages,
)

REQUESTS = (Capability.REQUESTS,)


@clause("REQ-3", bigram=True)
def test_every_buffer_that_a_slot_owns_can_be_read(driver: Driver) -> None:
    owned = {COMPONENT_POOL[component] for component in driver.config.components}
    owned |= {Pool(sidecar) for sidecar in driver.config.sidecars}
    layers = {pool: driver.adapter.layers(pool) for pool in Pool}
    seen = {pool for pool, count in layers.items() if count > 0}
    assert seen == owned, f"REQ-3: expected buffers {owned}, layers by pool are {layers}"
    sizes = {pool: driver.adapter.slot_bytes(pool) for pool in owned}
    assert all(sizes.values()), f"REQ-3: bytes per slot and layer: {sizes}"


@clause("REQ-3", needs=REQUESTS, page_sizes=[1, 16], bigram=True)
def test_reused_slots_hold_the_bytes_of_the_new_prompt(driver: Driver) -> None:
    hits = 0
    for round_number in range(2):
        for first in (10, 20, 30):
            pages = [first, first + 1, first + 2]
            hits += run_request(driver, pages)
            found = run_request(driver, [*pages, first + 3 + round_number])
            assert found == 3 * driver.config.page_size, f"REQ-3: the prompt was just cached, {found} tokens hit"
        evict_all(driver, *driver.config.components[round_number % 2 :])
    assert hits == 0, f"REQ-3: each round was to begin without the last round's prompts, {hits} tokens hit"


@clause("REQ-3", needs=REQUESTS, page_sizes=[1, 16, 64], bigram=True)
def test_a_request_does_not_read_what_another_decodes(driver: Driver) -> None:
    put(driver, [1, 2])
    admissions = {page: admit(driver, [1, 2, page]) for page in (7, 8)}
    for page, admission in admissions.items():
        assert admission.cached_tokens == 2 * driver.config.page_size, f"REQ-3: two pages were cached, {admission}"
        decode(driver, admission, [page * 10])
    for page, admission in admissions.items():
        driver.checkpoint(admission.request, tokens_in_pages(driver, 4))
        find(driver, [1, 2, page, page * 10])
    for admission in admissions.values():
        driver.finish(admission.request)


@clause("REQ-3", needs=REQUESTS, page_sizes=[1, 16], bigram=True)
def test_a_prefix_of_every_length_has_the_right_bytes(driver: Driver) -> None:
    pages = [1, 2, 3, 4, 5]
    put_prefixes(driver, pages)
    for count in range(1, 6):
        admission = admit(driver, [*pages[:count], 9])
        found = admission.cached_tokens
        assert found == count * driver.config.page_size, f"REQ-3: {count} pages are cached, {found} tokens were given"
        driver.abort(admission.request)


@clause("REQ-3", needs=REQUESTS, components=(MAMBA,))
def test_a_request_has_a_copy_of_the_state(driver: Driver) -> None:
    put(driver, [1, 2])
    first, second = admit(driver, [1, 2, 3]), admit(driver, [1, 2, 4])
    assert first.state != second.state, f"REQ-3: two requests were given one state, {first.state}"
    decode(driver, first, [5])
    decode(driver, second, [6])
    found = driver.match(key_of(driver, [1, 2]), chunked=True)
    driver.verify_state(key_of(driver, [1, 2]), found)
    for admission in (first, second):
        driver.finish(admission.request)
    for pages in ([1, 2, 3, 5], [1, 2, 4, 6]):
        driver.verify_state(key_of(driver, pages), driver.match(key_of(driver, pages)))


@clause("REQ-3", needs=REQUESTS, bigram=True)
def test_the_longest_hit_leaves_one_token_to_compute(driver: Driver) -> None:
    put_prefixes(driver, [1, 2, 3])
    admission = admit(driver, [1, 2, 3])
    found = admission.cached_tokens
    assert found == 2 * driver.config.page_size, f"REQ-3: of three cached pages the last is computed again, got {found}"
    driver.finish(admission.request)
    assert hit_pages(driver, [1, 2, 3]) == 3, "REQ-1: the prompt is cached as before"
