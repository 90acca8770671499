"""REQ: what a request caches, reads and releases on the device, and when it is admitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.pools import component_of
from hicache.types import Pool

from .checks import require_requests_released
from .scenario import (
    FULL,
    MAMBA,
    SWA,
    admit,
    allocate_all,
    decode,
    evict_all,
    find,
    has,
    hit_pages,
    key_of,
    open_variant,
    put,
    put_prefixes,
    tokens_in_pages,
    unit,
    window_pages,
)
from .tree_view import device_slots, free_slots, locks, nodes, prefixes, snapshot_values

LOOKING = (Capability.SNAPSHOT, Capability.SIZES)


def run_request(driver: Driver, pages: Sequence[int]) -> int:
    """Admit and finish a request of these pages; the number of tokens that were cached."""
    admission = admit(driver, pages)
    driver.finish(admission.request)
    return admission.cached_tokens


def longest_prompt_tokens(driver: Driver) -> int:
    """The number of tokens of the longest prompt that fits into an empty cache."""
    return min(tokens for name, tokens in driver.config.capacity_tokens.items() if name != MAMBA)


# REQ-1: what a request caches, at its end and after each chunk.

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


# REQ-4: after an insert the table of a request has the slots that the tree kept.


SHORT_PROMPT = (1, 2, 3, 4)


def elements(driver: Driver, pages: int) -> int:
    """Slots of so many pages."""
    return pages * driver.config.page_size


def tree_slots(driver: Driver, pages: int) -> list[int]:
    """The cached slots of the prompt's first pages."""
    cached = device_slots(driver, FULL)
    return [slot for count in range(1, pages + 1) for slot in cached[SHORT_PROMPT[:count]]]


@clause("REQ-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_two_requests_that_compute_one_prefix_read_the_same_slots(driver: Driver) -> None:
    first, second = (admit(driver, SHORT_PROMPT) for _ in range(2))
    shared = elements(driver, 3)
    own = set(second.table[:shared].tolist())
    assert not own & set(first.table.tolist()), "POOL-2: two requests were given the same slots"
    kept = driver.checkpoint(first.request, tokens_in_pages(driver, 3))[:shared].tolist()
    table = driver.checkpoint(second.request, tokens_in_pages(driver, 3))[:shared].tolist()
    assert table == kept == tree_slots(driver, 3), f"REQ-4: the tree kept {kept}, the second table says {table}"
    lost = own - free_slots(driver.snapshot())[FULL]
    assert not lost, f"REQ-4: the second request's duplicates {lost} are not free"
    for admission in (first, second):
        driver.finish(admission.request)
    assert hit_pages(driver, SHORT_PROMPT) == 4, "REQ-4: both requests finished, and their prompt does not hit"


@clause("REQ-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_the_table_past_the_chunk_is_unchanged(driver: Driver) -> None:
    admission = admit(driver, SHORT_PROMPT, tail=1)
    put(driver, SHORT_PROMPT[:2])
    table = driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    end = elements(driver, 2)
    assert table[:end].tolist() == tree_slots(driver, 2), f"REQ-4: the tree had these pages already, the table {table}"
    assert table[end:].tolist() == admission.table[end:].tolist(), "REQ-4: slots that were not inserted changed"
    driver.finish(admission.request)


@clause("REQ-4", bigram=True)
def test_the_next_match_returns_the_slots_of_the_table(driver: Driver) -> None:
    admission = admit(driver, SHORT_PROMPT)
    for count in (1, 2, 4):
        table = driver.checkpoint(admission.request, tokens_in_pages(driver, count))
        found = driver.match(key_of(driver, SHORT_PROMPT), chunked=True).device_indices.tolist()
        expected = table[: elements(driver, count)].tolist()
        assert found == expected, f"REQ-4: {count} pages are computed, the table says {expected}, a match gives {found}"
    decode(driver, admission, [5, 6])
    driver.finish(admission.request)
    find(driver, [*SHORT_PROMPT, 5, 6])


@clause("REQ-4", "REQ-1", needs=[Capability.SNAPSHOT, Capability.SIZES], page_sizes=[1, 16])
@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_diverging_requests_keep_one_copy_of_their_prefix_in_any_order(driver: Driver, order: tuple[int, ...]) -> None:
    prompts = [SHORT_PROMPT, [*SHORT_PROMPT[:2], 7], SHORT_PROMPT[:3]]
    admissions: list[Admission] = [admit(driver, pages) for pages in prompts]
    for number in order:
        driver.finish(admissions[number].request)
    require_requests_released(driver, f"three requests finished in the order {order}")
    stored, expected = driver.adapter.sizes()[FULL].evictable, elements(driver, 5)
    assert stored == expected, f"REQ-4: three prompts have five pages, {expected} slots; {stored} are held"


@clause("REQ-4", needs=[Capability.SNAPSHOT, Capability.SIZES], page_sizes=[3, 16, 64], bigram=True)
def test_a_page_that_prompts_share_in_part_is_not_cached(driver: Driver) -> None:
    opening = driver.prompt([1, 2])
    admissions = [driver.admit(driver.key([*opening, 500, last])) for last in (501, 502)]
    for admission in admissions:
        assert admission is not None, "REQ-5: two prompts of three pages fit"
        driver.finish(admission.request)
    require_requests_released(driver, "two requests finished that share a part of their last page")
    stored = driver.adapter.sizes()[FULL].evictable
    # With MAMBA neither has a state at the end of the last whole page.
    assert stored in (0, elements(driver, 2)), f"REQ-4: only whole pages can be kept, {stored} slots are held"


# REQ-1, REQ-3, REQ-5 with SWA: requests that are longer than their window.


WITH_REQUESTS = (Capability.SNAPSHOT, Capability.SIZES, Capability.REQUESTS)
PAIR = (1, 2)
LONG = tuple(range(1, 19))
"""A prompt of more pages than the SWA pool has."""


def swa_pages(driver: Driver) -> int:
    """Pages of the SWA pool that are not free."""
    size = driver.config.page_size
    return (driver.config.capacity_tokens[SWA] - driver.adapter.sizes()[SWA].free) // size


@clause("REQ-5", "POOL-5", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
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


@clause("REQ-3", "INS-6", needs=WITH_REQUESTS, components=(SWA,), page_sizes=[1, 16, 64], bigram=True)
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


@clause("REQ-4", "REQ-3", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
def test_an_inserted_prompt_of_any_length_hits_at_once(driver: Driver) -> None:
    admission = admit(driver, LONG[:1])
    for count in range(2, 10):
        decode(driver, admission, LONG[count - 1 : count])
        driver.checkpoint(admission.request, tokens_in_pages(driver, count))
        hit = hit_pages(driver, LONG[:count])
        assert hit == count, f"REQ-4: {count} pages were inserted, a match right after finds {hit}"
    driver.abort(admission.request)
    require_requests_released(driver, "a request was aborted beyond its window")


@clause("REQ-4", "REQ-3", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
@pytest.mark.parametrize("pages", [3, 6])
def test_the_last_window_stays_one_token_past_the_last_page(driver: Driver, pages: int) -> None:
    admission = admit(driver, LONG[:pages])
    assert driver.extend(admission.request, [7]) is not None, "REQ-5: there is room for one token more"
    driver.checkpoint(admission.request, tokens_in_pages(driver, pages))
    hit = hit_pages(driver, LONG[:pages])
    assert hit == pages, f"REQ-4: one token was decoded, {pages} pages were inserted, a match right after finds {hit}"
    driver.finish(admission.request)
    require_requests_released(driver, "a request finished one token past its last page")


@clause("REQ-4", "REQ-3", needs=WITH_REQUESTS, components=(SWA,), page_sizes=[3, 16], bigram=True)
def test_a_window_shorter_than_a_page_stays_wherever_decoding_ends(driver: Driver) -> None:
    # What the window has passed reaches the end of the last whole page, if it is rounded to pages alone (sglang#29860).
    for window in {1, driver.config.page_size // 2}:
        short = open_variant(driver, sliding_window_size=window)
        for passed in (1, window, driver.config.page_size - 1):
            admission = admit(short, PAIR)
            for count in (passed, 1):
                assert short.extend(admission.request, [7] * count) is not None, (
                    f"REQ-5: there is room for {count} more"
                )
            short.checkpoint(admission.request, tokens_in_pages(short, len(PAIR)) + passed)
            hit = hit_pages(short, PAIR)
            assert hit == len(PAIR) or has(short, MAMBA), (
                f"REQ-4: {passed} tokens past the page, window {window}: {len(PAIR)} pages were inserted, hit {hit}"
            )
            short.finish(admission.request)
            short.reset()
        short.adapter.close()


@clause("LOCK-8", "EVICT-4", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
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


@clause("REQ-3", "INS-4", needs=WITH_REQUESTS, components=(SWA,))
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


# REQ-3: a request reads only bytes that were written for its own prefix. The driver compares the bytes.


REQUESTS = (Capability.REQUESTS,)


@clause("REQ-3", bigram=True)
def test_every_buffer_that_a_slot_owns_can_be_read(driver: Driver) -> None:
    owned = {*component_of(driver.config)}
    layers = {pool: driver.adapter.layers(pool) for pool in {*owned, *map(str, Pool)}}
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


# REQ-2: an abort at any point of a request releases everything.


Stage = Callable[[Driver], Admission]


def started(driver: Driver) -> Admission:
    """Admitted, nothing computed."""
    return admit(driver, [1, 2, 3])


def started_with_a_tail(driver: Driver) -> Admission:
    """Admitted with a prompt that ends inside a page, nothing computed."""
    return admit(driver, [1, 2, 3], tail=1)


def started_on_a_hit(driver: Driver) -> Admission:
    """Admitted with a part of the prompt cached."""
    put(driver, [1, 2])
    return admit(driver, [1, 2, 3])


def computed_a_chunk(driver: Driver) -> Admission:
    """A chunk of the prompt is computed and cached."""
    admission = started(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    return admission


def computed_part_of_a_page(driver: Driver) -> Admission:
    """The computed chunk ends inside a page."""
    admission = started_with_a_tail(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 3) + 1)
    return admission


def computed_on_a_hit(driver: Driver) -> Admission:
    """The whole prompt is computed and cached, after a hit."""
    admission = started_on_a_hit(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 3))
    return admission


def computed_what_another_did(driver: Driver) -> Admission:
    """Another request computed the same pages meanwhile."""
    admission = started(driver)
    put(driver, [1, 2, 3])
    driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    return admission


def decoding(driver: Driver) -> Admission:
    """Tokens were decoded."""
    admission = started(driver)
    decode(driver, admission, [4, 5])
    return admission


def decoding_past_the_window(driver: Driver) -> Admission:
    """The prompt is cached, and decoding has moved the window past it."""
    admission = computed_on_a_hit(driver)
    decode(driver, admission, range(4, 11))
    return admission


def cached_past_the_window(driver: Driver) -> Admission:
    """The decoded tokens are cached as well."""
    admission = decoding_past_the_window(driver)
    driver.checkpoint(admission.request, tokens_in_pages(driver, 10))
    return admission


def out_of_slots(driver: Driver) -> Admission:
    """An extension failed for lack of slots."""
    admission = decoding(driver)
    other = allocate_all(driver)
    table = driver.extend(admission.request, driver.prompt([6]))
    assert table is None, f"POOL-3: all slots are held, and the table grew to {table}"
    driver.free(other)
    return admission


STAGES: tuple[Stage, ...] = (
    *(started, started_with_a_tail, started_on_a_hit, computed_a_chunk, computed_part_of_a_page, computed_on_a_hit),
    *(computed_what_another_did, decoding, decoding_past_the_window, cached_past_the_window, out_of_slots),
)


@clause("REQ-2", needs=LOOKING, page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_an_abort_releases_everything(driver: Driver, stage: Stage) -> None:
    driver.abort(stage(driver).request)
    require_requests_released(driver, f"aborted when {stage.__name__}")
    evict_all(driver)
    assert not nodes(driver), f"REQ-2: aborted when {stage.__name__}, {nodes(driver).keys()} cannot be evicted"


@clause("REQ-6", needs=LOOKING, page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_an_abort_caches_nothing(driver: Driver, stage: Stage) -> None:
    admission = stage(driver)
    before = device_slots(driver, FULL).keys()
    driver.abort(admission.request)
    added = device_slots(driver, FULL).keys() - before
    assert not added, f"REQ-6: aborted when {stage.__name__}: expected nothing more to be cached, got {added}"


@clause("REQ-2", "REQ-5", needs=LOOKING)
def test_a_request_that_waits_holds_nothing(driver: Driver) -> None:
    put(driver, [1, 2])
    other = admit(driver, [8])
    sizes = driver.adapter.sizes()
    prompt = driver.key([*driver.prompt([1, 2]), *range(longest_prompt_tokens(driver))])
    for _ in range(driver.config.capacity_tokens[FULL] // driver.config.page_size):
        assert driver.admit(prompt) is None, f"POOL-3: {len(prompt.tokens)} tokens do not fit"
    after = driver.adapter.sizes()
    for component, before in sizes.items():
        room = before.free + before.evictable, after[component].free + after[component].evictable
        assert room[0] == room[1], (
            f"REQ-2: expected a refused request to take no {component} slots, free and evictable before and after: "
            f"{room}"
        )
    driver.finish(other.request)
    require_requests_released(driver, "one request finished and another never started")


# REQ-5: which requests are admitted; an admitted request can be computed to its end.


def most_pages(driver: Driver) -> list[int]:
    """The longest prompt of whole pages that fits into an empty cache."""
    return list(range(1, longest_prompt_tokens(driver) // driver.config.page_size + 1 - int(driver.config.bigram)))


@clause("REQ-5", needs=LOOKING, bigram=True)
def test_a_request_that_fits_an_empty_cache_is_admitted_when_all_others_have_finished(driver: Driver) -> None:
    running: list[Admission] = []
    for first in range(100, 200, 10):
        admission = driver.admit(key_of(driver, [first, first + 1, first + 2]))
        if admission is None:
            break
        running.append(admission)
    assert 2 <= len(running) < 10, f"REQ-5: expected 2 to 9 admitted requests, got {len(running)}"
    assert driver.admit(key_of(driver, most_pages(driver))) is None, (
        "POOL-3: expected a request as large as the cache to be refused while others run"
    )
    for admission in running:
        driver.finish(admission.request)
    admission = admit(driver, most_pages(driver))
    driver.finish(admission.request)
    require_requests_released(driver, "all have finished")


@clause("REQ-5", "EVICT-1", needs=LOOKING, page_sizes=[1, 16], bigram=True)
def test_a_cache_full_of_finished_prompts_admits_a_request(driver: Driver) -> None:
    for first in range(100, 140, 10):
        run_request(driver, range(first, first + 6))
    assert run_request(driver, most_pages(driver)) == 0, "REQ-5: nothing of this prompt was cached"
    hit = hit_pages(driver, most_pages(driver))
    assert hit == len(most_pages(driver)), f"REQ-5: a prompt as long as the cache was computed, {hit} pages hit"


@clause("REQ-5", needs=LOOKING, bigram=True)
def test_an_admitted_request_can_be_computed_when_no_slot_is_free(driver: Driver) -> None:
    put(driver, [1, 2])
    pages = [1, 2, 3, 4, 5, 6]
    admission = admit(driver, pages)
    slots = allocate_all(driver)
    states = list(iter(driver.allocate_state, None)) if has(driver, MAMBA) else []
    for count in (3, 4, 6):
        driver.checkpoint(admission.request, tokens_in_pages(driver, count))
    driver.finish(admission.request)
    for state in states:
        driver.free_state(state)
    driver.free(slots)
    require_requests_released(driver, "a request finished that had no room but its own")
    find(driver, pages)


@clause("REQ-5", "EVICT-1", needs=LOOKING, components=(MAMBA,))
def test_without_a_slot_for_a_state_a_chunk_is_not_cached(driver: Driver) -> None:
    admission = admit(driver, [1, 2, 3])
    states = list(iter(driver.allocate_state, None))
    table = driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    assert table.tolist() == admission.table.tolist(), "REQ-5: a chunk that cannot be cached changed the table"
    assert hit_pages(driver, [1, 2]) == 0, "MATCH-4: no state was left for the chunk, and it hits"
    driver.free_state(states.pop())
    driver.checkpoint(admission.request, tokens_in_pages(driver, 3))
    assert hit_pages(driver, [1, 2, 3]) == 3, "REQ-5: there is a slot for a state again, and the chunk is not cached"
    driver.finish(admission.request)
    for state in states:
        driver.free_state(state)


@clause("REQ-5", needs=LOOKING, page_sizes=[1, 16, 64], bigram=True)
def test_an_extension_without_room_leaves_the_request_unchanged(driver: Driver) -> None:
    admission = admit(driver, [1, 2])
    driver.checkpoint(admission.request, tokens_in_pages(driver, 2))
    slots = allocate_all(driver)
    before = snapshot_values(driver.snapshot())
    for _ in range(3):
        table = driver.extend(admission.request, driver.prompt([3, 4]))
        assert table is None, f"POOL-3: no slot is left, and the table grew to {table}"
        assert snapshot_values(driver.snapshot()) == before, "POOL-3: an extension that does not fit changed the cache"
    driver.free(slots)
    decode(driver, admission, [3, 4])
    driver.finish(admission.request)
    find(driver, [1, 2, 3, 4])
    require_requests_released(driver, "a request finished that had to wait")


@clause("REQ-5", needs=LOOKING, components=(MAMBA,))
@pytest.mark.parametrize("pages", [[1, 2], [1, 2, 3], [7]], ids=str)
def test_one_state_suffices_for_one_request(driver: Driver, pages: list[int]) -> None:
    small = open_variant(driver, capacity_tokens={**driver.config.capacity_tokens, MAMBA: 1})
    for prompt in ([1, 2], pages, pages):
        run_request(small, prompt)
        require_requests_released(small, f"a request for {prompt} finished")
    small.adapter.close()
