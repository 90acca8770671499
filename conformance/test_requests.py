"""REQ: what a request caches, reads and releases on the device, and when it is admitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.pools import component_of
from hicache.testing.geometry import Publish
from hicache.types import Pool

from .scenario import FULL, MAMBA, SWA, Scenario
from .snapshot_values import free_slots, prefixes, snapshot_values

LOOKING = (Capability.SNAPSHOT, Capability.SIZES)


def run_request(driver: Scenario, pages: Sequence[int]) -> int:
    """Admit and finish a request of these pages; the number of tokens that were cached."""
    admission = driver.admit_pages(pages)
    driver.finish(admission.request)
    return admission.cached_tokens


def longest_prompt_tokens(driver: Scenario) -> int:
    """The number of tokens of the longest prompt that fits into an empty cache."""
    room = min(tokens for name, tokens in driver.config.capacity_tokens.items() if name != MAMBA)
    return next(tokens for tokens in range(room, 0, -1) if driver.slot_tokens(tokens) <= room)


def cached_early(driver: Scenario, pages: int) -> int:
    """How many of these computed pages are cached while their request runs."""
    return 0 if driver.geometry.publish is Publish.REQUEST else pages


# REQ-1: what a request caches, at its end and after each chunk.

PROMPT = (1, 2, 3, 4, 5, 6)


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_a_finished_request_leaves_its_prompt_and_nothing_else(driver: Scenario) -> None:
    assert run_request(driver, PROMPT) == 0, "REQ-1: nothing is cached yet"
    driver.require_requests_released("a request finished")
    assert driver.device_slots(FULL).keys() == prefixes(*PROMPT), (
        f"REQ-1: {PROMPT} was to be cached: expected {prefixes(*PROMPT)}, got {driver.device_slots(FULL)}"
    )
    driver.find(PROMPT)


@clause("REQ-1", needs=LOOKING, page_sizes=[3, 16, 64], bigram=True)
def test_the_tail_after_the_last_whole_page_is_freed(driver: Scenario) -> None:
    admission = driver.admit_pages(PROMPT, tail=2)
    driver.finish(admission.request)
    driver.require_requests_released("a request with a tail finished")
    # With MAMBA its state is that after the tail, so there is none for the last whole page.
    expected = set() if driver.has(MAMBA) else prefixes(*PROMPT)
    cached = driver.device_slots(FULL).keys()
    assert cached == expected, f"REQ-1: expected {expected} cached of {PROMPT} and two tokens, got {cached}"


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_each_chunk_is_cached_and_protected(driver: Scenario) -> None:
    admission = driver.admit_pages(PROMPT)
    for count in (2, 4, 6):
        driver.checkpoint(admission.request, driver.tokens_in_pages(count))
        driver.evict_all()
        cached = cached_early(driver, count)
        found = driver.device_slots(FULL).keys()
        assert found == prefixes(*PROMPT[:cached]), f"REQ-1: {count} pages are computed, cached are {found}"
        hit = driver.hit_pages(PROMPT)
        assert hit == cached, f"REQ-1: {count} pages are computed: expected {cached} to hit, got {hit}"
        counts = {prefix: number for (component, prefix), number in driver.all_locks().items() if component == FULL}
        expected = dict.fromkeys(prefixes(*PROMPT[:cached]), 1)
        assert counts == expected, f"REQ-1: {cached} pages of a request are cached, each is held once: {counts}"
    driver.finish(admission.request)
    driver.require_requests_released("a request in three chunks finished")


@clause("REQ-1", needs=LOOKING, components=(SWA,))
def test_the_window_moves_with_the_chunks(driver: Scenario) -> None:
    admission = driver.admit_pages(PROMPT)
    driver.checkpoint(admission.request, driver.tokens_in_pages(1))
    driver.checkpoint(admission.request, driver.tokens_in_pages(6))
    driver.evict_all()
    driver.finish(admission.request)
    driver.require_requests_released("a request of two windows finished")
    assert driver.hit_pages(PROMPT) == 6, "REQ-1: the last window was held, and the prompt hits"


@clause("REQ-1", needs=LOOKING, page_sizes=[3, 16, 64], bigram=True)
def test_chunks_may_end_inside_a_page(driver: Scenario) -> None:
    admission = driver.admit_pages(PROMPT)
    for tokens in (driver.tokens_in_pages(2) - 1, driver.tokens_in_pages(2) + 1, driver.tokens_in_pages(5) + 1):
        driver.checkpoint(admission.request, tokens)
        whole = (tokens - driver.tokens_in_pages(0)) // driver.config.page_size
        # With MAMBA there is a state for the last whole page only when the chunk ends there.
        expected = 0 if driver.has(MAMBA) else cached_early(driver, whole)
        hit = driver.hit_pages(PROMPT)
        assert hit == expected, f"REQ-1: {tokens} tokens are computed: expected {expected} pages cached, hit {hit}"
    driver.finish(admission.request)
    driver.require_requests_released("a request finished whose chunks ended inside pages")
    assert driver.hit_pages(PROMPT) == 6, "REQ-1: all of the prompt was computed in the end"


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_a_checkpoint_without_progress_changes_nothing(driver: Scenario) -> None:
    admission = driver.admit_pages(PROMPT)
    first = driver.checkpoint(admission.request, driver.tokens_in_pages(2))
    before = driver.device_slots(FULL), driver.all_locks(), driver.adapter.sizes()
    second = driver.checkpoint(admission.request, driver.tokens_in_pages(2))
    assert second.tolist() == first.tolist(), f"REQ-1: nothing was computed, the table went from {first} to {second}"
    after = driver.device_slots(FULL), driver.all_locks(), driver.adapter.sizes()
    assert after == before, f"REQ-1: nothing was computed, the cache went from {before} to {after}"
    driver.finish(admission.request)


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_two_requests_for_one_prompt_keep_one_copy(driver: Scenario) -> None:
    admissions = [driver.admit_pages(PROMPT[:3]) for _ in range(2)]
    for admission in admissions:
        driver.finish(admission.request)
    driver.require_requests_released("two requests for one prompt finished")
    stored = driver.adapter.sizes()[FULL].evictable
    assert stored == 3 * driver.config.page_size, f"REQ-1: three pages are kept once, {stored} slots are held"


@clause("REQ-1", needs=LOOKING, bigram=True)
def test_decoded_tokens_are_cached_with_the_prompt(driver: Scenario) -> None:
    admission = driver.admit_pages(PROMPT[:2])
    driver.decode(admission, PROMPT[2:])
    driver.finish(admission.request)
    driver.require_requests_released("a request that decoded finished")
    driver.find(PROMPT)


@clause("REQ-1", "LOCK-5", needs=LOOKING, page_sizes=[1, 16])
@pytest.mark.parametrize("end", ["finish", "abort"])
def test_the_end_of_one_request_leaves_the_lock_of_another(driver: Scenario, end: str) -> None:
    driver.put_pages(PROMPT[:2])
    first, second = driver.admit_pages([*PROMPT[:2], 8]), driver.admit_pages([*PROMPT[:2], 9])
    (driver.finish if end == "finish" else driver.abort)(first.request)
    driver.evict_all()
    hit = driver.hit_pages(PROMPT[:2])
    assert hit == 2, f"LOCK-5: another request reads these two pages, {hit} are left"
    driver.match(driver.key_of([*PROMPT[:2], 9]))
    driver.finish(second.request)
    driver.require_requests_released("both requests ended")


# REQ-4: after an insert the table of a request has the slots that the tree kept.


SHORT_PROMPT = (1, 2, 3, 4)


def elements(driver: Scenario, pages: int) -> int:
    """Slots of so many pages."""
    return pages * driver.config.page_size


def tree_slots(driver: Scenario, pages: int) -> list[int]:
    """The cached slots of the prompt's first pages; none of a page that is not cached."""
    cached = driver.device_slots(FULL)
    return [slot for count in range(1, pages + 1) for slot in cached.get(SHORT_PROMPT[:count], ())]


def keeps_its_slots(driver: Scenario) -> bool:
    """Whether a checkpoint leaves a request the slots that it computed, where the tree has others for these pages."""
    return driver.geometry.duplicates or driver.geometry.publish is Publish.REQUEST


@clause("REQ-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_two_requests_that_compute_one_prefix_read_the_same_slots(driver: Scenario) -> None:
    first, second = (driver.admit_pages(SHORT_PROMPT) for _ in range(2))
    shared = elements(driver, 3)
    own = second.table[:shared].tolist()
    assert not {*own} & {*first.table.tolist()}, "POOL-2: two requests were given the same slots"
    kept = driver.checkpoint(first.request, driver.tokens_in_pages(3))[:shared].tolist()
    cached = tree_slots(driver, cached_early(driver, 3))
    assert cached in ([], kept), f"REQ-4: the tree kept {cached}, the first table says {kept}"
    table = driver.checkpoint(second.request, driver.tokens_in_pages(3))[:shared].tolist()
    expected = own if keeps_its_slots(driver) else cached
    assert table == expected, f"REQ-4: expected {expected} in the second table, got {table}"
    lost = {*own} - {*table} - free_slots(driver.snapshot())[FULL]
    assert not lost, f"REQ-4: the second request's duplicates {lost} are not free"
    driver.checkpoint(second.request, driver.tokens_in_pages(4))
    for admission in (first, second):
        driver.finish(admission.request)
    assert driver.hit_pages(SHORT_PROMPT) == 4, "REQ-4: both requests finished, and their prompt does not hit"


@clause("REQ-4", needs=[Capability.SNAPSHOT], bigram=True)
def test_the_table_past_the_chunk_is_unchanged(driver: Scenario) -> None:
    admission = driver.admit_pages(SHORT_PROMPT, tail=1)
    driver.put_pages(SHORT_PROMPT[:2])
    table = driver.checkpoint(admission.request, driver.tokens_in_pages(2))
    end = elements(driver, 2)
    expected = admission.table[:end].tolist() if keeps_its_slots(driver) else tree_slots(driver, 2)
    assert table[:end].tolist() == expected, f"REQ-4: the tree had these pages: expected {expected}, the table {table}"
    assert table[end:].tolist() == admission.table[end:].tolist(), "REQ-4: slots that were not inserted changed"
    driver.finish(admission.request)


@clause("REQ-4", bigram=True)
def test_the_next_match_returns_the_slots_of_the_table(driver: Scenario) -> None:
    admission = driver.admit_pages(SHORT_PROMPT)
    for count in (1, 2, 4):
        table = driver.checkpoint(admission.request, driver.tokens_in_pages(count))
        found = driver.match(driver.key_of(SHORT_PROMPT), chunked=True).device_indices.tolist()
        expected = table[: elements(driver, cached_early(driver, count))].tolist()
        assert found == expected, f"REQ-4: {count} pages are computed, the table says {expected}, a match gives {found}"
    driver.decode(admission, [5, 6])
    driver.finish(admission.request)
    driver.find([*SHORT_PROMPT, 5, 6])


@clause("REQ-4", "REQ-1", needs=[Capability.SNAPSHOT, Capability.SIZES], page_sizes=[1, 16])
@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_diverging_requests_keep_one_copy_of_their_prefix_in_any_order(
    driver: Scenario, order: tuple[int, ...]
) -> None:
    prompts = [SHORT_PROMPT, [*SHORT_PROMPT[:2], 7], SHORT_PROMPT[:3]]
    admissions: list[Admission] = [driver.admit_pages(pages) for pages in prompts]
    for number in order:
        driver.finish(admissions[number].request)
    driver.require_requests_released(f"three requests finished in the order {order}")
    stored, expected = driver.adapter.sizes()[FULL].evictable, elements(driver, 5)
    assert stored == expected, f"REQ-4: three prompts have five pages, {expected} slots; {stored} are held"


@clause("REQ-4", needs=[Capability.SNAPSHOT, Capability.SIZES], page_sizes=[3, 16, 64], bigram=True)
def test_a_page_that_prompts_share_in_part_is_not_cached(driver: Scenario) -> None:
    opening = driver.prompt([1, 2])
    admissions = [driver.admit(driver.key([*opening, 500, last])) for last in (501, 502)]
    for admission in admissions:
        assert admission is not None, "REQ-5: two prompts of three pages fit"
        driver.finish(admission.request)
    driver.require_requests_released("two requests finished that share a part of their last page")
    stored = driver.adapter.sizes()[FULL].evictable
    # With MAMBA neither has a state at the end of the last whole page.
    assert stored in (0, elements(driver, 2)), f"REQ-4: only whole pages can be kept, {stored} slots are held"


# REQ-1, REQ-3, REQ-5 with SWA: requests that are longer than their window.


WITH_REQUESTS = (Capability.SNAPSHOT, Capability.SIZES, Capability.REQUESTS)
PAIR = (1, 2)
LONG = tuple(range(1, 19))
"""A prompt of more pages than the SWA pool has."""


def swa_pages(driver: Scenario) -> int:
    """Pages of the SWA pool that are not free."""
    size = driver.config.page_size
    return (driver.config.capacity_tokens[SWA] - driver.adapter.sizes()[SWA].free) // size


@clause("REQ-5", "POOL-5", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
def test_a_request_decodes_further_than_its_window(driver: Scenario) -> None:
    admission = driver.admit_pages(LONG[:2])
    for page in LONG[2:]:
        driver.decode(admission, [page])
        used, most = swa_pages(driver), driver.window_pages + 3
        assert used <= most, f"REQ-5: one request with a window of {most - 3} pages holds {used} pages of SWA"
    assert len(LONG) * driver.unit(SWA) > driver.config.capacity_tokens[SWA], "the request outgrew the SWA pool"
    driver.finish(admission.request)
    driver.require_requests_released("a request finished that was longer than the SWA pool")
    driver.find(LONG)


@clause("REQ-8", bigram=True, verbs=False)
def test_a_request_past_its_window_keeps_one_window(driver: Scenario) -> None:
    request = driver.admit_pages(LONG[:4])
    driver.checkpoint(request.request, driver.tokens_in_pages(4))
    driver.decode(request, LONG[4 : 8 + driver.window_pages])
    sizes, most = driver.adapter.sizes()[SWA], driver.window_pages + 3
    kept = (driver.config.capacity_tokens[SWA] - sizes.free - sizes.evictable) // driver.unit(SWA)
    assert kept <= most, f"REQ-8: a request keeps at most {most} pages of SWA from eviction, got {kept}"
    driver.finish(request.request)


@clause("REQ-8", "REQ-5", bigram=True, verbs=False)
def test_a_chunk_fits_where_only_the_window_has_room(driver: Scenario) -> None:
    size, pages = driver.config.page_size, range(1, 21)
    request = driver.admit_pages(pages[:6])
    for start, end in ((6, 12), (12, 20)):
        table = driver.extend(request.request, driver.prompt(pages[start:end])[-(end - start) * size :])
        assert table is not None, f"REQ-8: of {start} pages a window has to stay: expected room for {end - start}"
        # With MAMBA there is no state for the last whole page, so that nothing of this chunk is cached.
        driver.checkpoint(request.request, driver.tokens_in_pages(end) - 1)
    driver.finish(request.request)


@clause("REQ-3", "INS-6", needs=WITH_REQUESTS, components=(SWA,), page_sizes=[1, 16, 64], bigram=True)
@pytest.mark.parametrize("chunk", [1, 5])
def test_pages_before_the_window_are_cached_as_tombstones(driver: Scenario, chunk: int) -> None:
    admission = driver.admit_pages(LONG[:chunk])
    driver.checkpoint(admission.request, driver.tokens_in_pages(chunk))
    driver.decode(admission, LONG[chunk:12])
    driver.checkpoint(admission.request, driver.tokens_in_pages(12))
    is_late = not cached_early(driver, 12)
    if is_late:
        driver.finish(admission.request)
    live = driver.device_slots(SWA).keys()
    window = prefixes(*LONG[:12]) - prefixes(*LONG[: 12 - driver.window_pages])
    assert window <= live, f"INS-6: the last window is {window}, SWA data is there of {live}"
    assert driver.device_slots(FULL).keys() == prefixes(*LONG[:12]), (
        f"REQ-1: all 12 pages are cached: {driver.device_slots(FULL)}"
    )
    if not driver.has(MAMBA):
        other = driver.admit_pages(LONG[:13])
        assert other.cached_tokens == 12 * driver.config.page_size, f"REQ-4: 12 pages are cached, {other}"
        driver.finish(other.request)
    if not is_late:
        driver.finish(admission.request)
    driver.require_requests_released("requests finished beyond their window")


@clause("REQ-4", "REQ-3", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
def test_an_inserted_prompt_of_any_length_hits_at_once(driver: Scenario) -> None:
    admission = driver.admit_pages(LONG[:1])
    for count in range(2, 10):
        driver.decode(admission, LONG[count - 1 : count])
        driver.checkpoint(admission.request, driver.tokens_in_pages(count))
        hit, expected = driver.hit_pages(LONG[:count]), cached_early(driver, count)
        assert hit == expected, f"REQ-4: {count} pages are computed: expected {expected} to hit right after, got {hit}"
    driver.abort(admission.request)
    driver.require_requests_released("a request was aborted beyond its window")


@clause("REQ-4", "REQ-3", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
@pytest.mark.parametrize("pages", [3, 6])
def test_the_last_window_stays_one_token_past_the_last_page(driver: Scenario, pages: int) -> None:
    admission = driver.admit_pages(LONG[:pages])
    assert driver.extend(admission.request, [7]) is not None, "REQ-5: there is room for one token more"
    driver.checkpoint(admission.request, driver.tokens_in_pages(pages))
    hit, expected = driver.hit_pages(LONG[:pages]), cached_early(driver, pages)
    assert hit == expected, (
        f"REQ-4: one token was decoded after {pages} pages: expected {expected} to hit right after, got {hit}"
    )
    driver.finish(admission.request)
    driver.require_requests_released("a request finished one token past its last page")


@clause("REQ-4", "REQ-3", needs=WITH_REQUESTS, components=(SWA,), page_sizes=[3, 16], bigram=True)
def test_a_window_shorter_than_a_page_stays_wherever_decoding_ends(driver: Scenario) -> None:
    # What the window has passed reaches the end of the last whole page, if it is rounded to pages alone (sglang#29860).
    for window in {1, driver.config.page_size // 2}:
        short = driver.open_variant(sliding_window_size=window)
        for passed in (1, window, driver.config.page_size - 1):
            admission = short.admit_pages(PAIR)
            for count in (passed, 1):
                assert short.extend(admission.request, [7] * count) is not None, (
                    f"REQ-5: there is room for {count} more"
                )
            short.checkpoint(admission.request, short.tokens_in_pages(len(PAIR)) + passed)
            hit, expected = short.hit_pages(PAIR), cached_early(short, len(PAIR))
            assert hit == expected or short.has(MAMBA), (
                f"REQ-4: {passed} tokens past the page, window {window}: expected {expected} pages to hit, got {hit}"
            )
            short.finish(admission.request)
            short.reset()
        short.adapter.close()


@clause("LOCK-8", "EVICT-4", needs=WITH_REQUESTS, components=(SWA,), bigram=True)
def test_evictions_of_swa_data_leave_a_running_request_intact(driver: Scenario) -> None:
    admission = driver.admit_pages(LONG[:4])
    driver.checkpoint(admission.request, driver.tokens_in_pages(4))
    for page in LONG[4:12]:
        driver.decode(admission, [page])
        driver.evict_all()
    assert driver.all_locks()[FULL, LONG[:4]] == cached_early(driver, 1), (
        f"REQ-1: the request reads its prompt yet, locks are {driver.all_locks()}"
    )
    driver.checkpoint(admission.request, driver.tokens_in_pages(12))
    driver.evict_all()
    assert driver.hit_pages(LONG[:12]) == cached_early(driver, 12), "REQ-1: what the request reads was evicted"
    driver.finish(admission.request)
    driver.require_requests_released("a request finished under pressure on its window")


@clause("REQ-3", "INS-4", needs=WITH_REQUESTS, components=(SWA,))
def test_a_resent_prompt_after_its_window_moved_on_is_computed_again(driver: Scenario) -> None:
    admission = driver.admit_pages(LONG[:2])
    driver.decode(admission, LONG[2:10])
    driver.finish(admission.request)
    evict_free = driver.device_slots(SWA).keys() & prefixes(*LONG[:2])
    found = run_request(driver, LONG[:3])
    assert found == 0 or evict_free, f"MATCH-3: pages 1 and 2 have no SWA data, {found} tokens were given as a hit"
    driver.require_requests_released("a prompt was sent again")
    if driver.has(MAMBA):
        return
    assert driver.hit_pages(LONG[:3]) == 3, "INS-4: the prompt was computed again, and brought its SWA data back"


# REQ-3: a request reads only bytes that were written for its own prefix. The driver compares the bytes.


REQUESTS = (Capability.REQUESTS,)


@clause("REQ-3", bigram=True)
def test_every_buffer_that_a_slot_owns_can_be_read(driver: Scenario) -> None:
    owned = {*component_of(driver.config)}
    layers = {pool: driver.adapter.layers(pool) for pool in {*owned, *map(str, Pool)}}
    seen = {pool for pool, count in layers.items() if count > 0}
    assert seen == owned, f"REQ-3: expected buffers {owned}, layers by pool are {layers}"
    sizes = {pool: driver.adapter.slot_bytes(pool) for pool in owned}
    assert all(sizes.values()), f"REQ-3: bytes per slot and layer: {sizes}"


@clause("REQ-3", needs=REQUESTS, page_sizes=[1, 16], bigram=True)
def test_reused_slots_hold_the_bytes_of_the_new_prompt(driver: Scenario) -> None:
    hits = 0
    for round_number in range(2):
        for first in (10, 20, 30):
            pages = [first, first + 1, first + 2]
            hits += run_request(driver, pages)
            found = run_request(driver, [*pages, first + 3 + round_number])
            assert found == 3 * driver.config.page_size, f"REQ-3: the prompt was just cached, {found} tokens hit"
        driver.evict_all(*driver.config.components[round_number % 2 :])
    assert hits == 0, f"REQ-3: each round was to begin without the last round's prompts, {hits} tokens hit"


@clause("REQ-3", needs=REQUESTS, page_sizes=[1, 16, 64], bigram=True)
def test_a_request_does_not_read_what_another_decodes(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    admissions = {page: driver.admit_pages([1, 2, page]) for page in (7, 8)}
    for page, admission in admissions.items():
        assert admission.cached_tokens == 2 * driver.config.page_size, f"REQ-3: two pages were cached, {admission}"
        driver.decode(admission, [page * 10])
    for page, admission in admissions.items():
        driver.checkpoint(admission.request, driver.tokens_in_pages(4))
        driver.find([1, 2, page, page * 10][: 2 + cached_early(driver, 2)])
    for page, admission in admissions.items():
        driver.finish(admission.request)
        driver.find([1, 2, page, page * 10])


@clause("REQ-3", needs=REQUESTS, page_sizes=[1, 16], bigram=True)
def test_a_prefix_of_every_length_has_the_right_bytes(driver: Scenario) -> None:
    pages = [1, 2, 3, 4, 5]
    driver.put_prefixes(pages)
    for count in range(1, 6):
        admission = driver.admit_pages([*pages[:count], 9])
        found = admission.cached_tokens
        assert found == count * driver.config.page_size, f"REQ-3: {count} pages are cached, {found} tokens were given"
        driver.abort(admission.request)


@clause("REQ-3", needs=REQUESTS, components=(MAMBA,))
def test_a_request_has_a_copy_of_the_state(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    first, second = driver.admit_pages([1, 2, 3]), driver.admit_pages([1, 2, 4])
    assert first.state != second.state, f"REQ-3: two requests were given one state, {first.state}"
    driver.decode(first, [5])
    driver.decode(second, [6])
    found = driver.match(driver.key_of([1, 2]), chunked=True)
    driver.verify_state(driver.key_of([1, 2]), found)
    for admission in (first, second):
        driver.finish(admission.request)
    for pages in ([1, 2, 3, 5], [1, 2, 4, 6]):
        driver.verify_state(driver.key_of(pages), driver.match(driver.key_of(pages)))


@clause("REQ-3", needs=REQUESTS, bigram=True)
def test_the_longest_hit_leaves_one_token_to_compute(driver: Scenario) -> None:
    driver.put_prefixes([1, 2, 3])
    admission = driver.admit_pages([1, 2, 3])
    found = admission.cached_tokens
    assert found == 2 * driver.config.page_size, f"REQ-3: of three cached pages the last is computed again, got {found}"
    driver.finish(admission.request)
    assert driver.hit_pages([1, 2, 3]) == 3, "REQ-1: the prompt is cached as before"


# REQ-2: an abort at any point of a request releases everything.


Phase = Callable[[Scenario], Admission]


def started(driver: Scenario) -> Admission:
    """Admitted, nothing computed."""
    return driver.admit_pages([1, 2, 3])


def started_with_a_tail(driver: Scenario) -> Admission:
    """Admitted with a prompt that ends inside a page, nothing computed."""
    return driver.admit_pages([1, 2, 3], tail=1)


def started_on_a_hit(driver: Scenario) -> Admission:
    """Admitted with a part of the prompt cached."""
    driver.put_pages([1, 2])
    return driver.admit_pages([1, 2, 3])


def computed_a_chunk(driver: Scenario) -> Admission:
    """A chunk of the prompt is computed and cached."""
    admission = started(driver)
    driver.checkpoint(admission.request, driver.tokens_in_pages(2))
    return admission


def computed_part_of_a_page(driver: Scenario) -> Admission:
    """The computed chunk ends inside a page."""
    admission = started_with_a_tail(driver)
    driver.checkpoint(admission.request, driver.tokens_in_pages(3) + 1)
    return admission


def computed_on_a_hit(driver: Scenario) -> Admission:
    """The whole prompt is computed and cached, after a hit."""
    admission = started_on_a_hit(driver)
    driver.checkpoint(admission.request, driver.tokens_in_pages(3))
    return admission


def computed_what_another_did(driver: Scenario) -> Admission:
    """Another request computed the same pages meanwhile."""
    admission = started(driver)
    driver.put_pages([1, 2, 3])
    driver.checkpoint(admission.request, driver.tokens_in_pages(2))
    return admission


def decoding(driver: Scenario) -> Admission:
    """Tokens were decoded."""
    admission = started(driver)
    driver.decode(admission, [4, 5])
    return admission


def decoding_past_the_window(driver: Scenario) -> Admission:
    """The prompt is cached, and decoding has moved the window past it."""
    admission = computed_on_a_hit(driver)
    driver.decode(admission, range(4, 11))
    return admission


def cached_past_the_window(driver: Scenario) -> Admission:
    """The decoded tokens are cached as well."""
    admission = decoding_past_the_window(driver)
    driver.checkpoint(admission.request, driver.tokens_in_pages(10))
    return admission


def out_of_slots(driver: Scenario) -> Admission:
    """An extension failed for lack of slots."""
    admission = decoding(driver)
    other = driver.allocate_all()
    table = driver.extend(admission.request, driver.prompt([6]))
    assert table is None, f"POOL-3: all slots are held, and the table grew to {table}"
    driver.free(other)
    return admission


PHASES: tuple[Phase, ...] = (
    *(started, started_with_a_tail, started_on_a_hit, computed_a_chunk, computed_part_of_a_page, computed_on_a_hit),
    *(computed_what_another_did, decoding, decoding_past_the_window, cached_past_the_window, out_of_slots),
)


@clause("REQ-2", needs=LOOKING, page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_an_abort_releases_everything(driver: Scenario, phase: Phase) -> None:
    driver.abort(phase(driver).request)
    driver.require_requests_released(f"aborted when {phase.__name__}")
    driver.evict_all()
    assert not driver.nodes(), f"REQ-2: aborted when {phase.__name__}, {driver.nodes().keys()} cannot be evicted"


@clause("REQ-6", needs=LOOKING, page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_an_abort_caches_nothing(driver: Scenario, phase: Phase) -> None:
    admission = phase(driver)
    before = driver.device_slots(FULL).keys()
    driver.abort(admission.request)
    added = driver.device_slots(FULL).keys() - before
    assert not added, f"REQ-6: aborted when {phase.__name__}: expected nothing more to be cached, got {added}"


@clause("REQ-2", "REQ-5", needs=LOOKING)
def test_a_request_that_waits_holds_nothing(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    other = driver.admit_pages([8])
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
    driver.require_requests_released("one request finished and another never started")


# REQ-5: which requests are admitted; an admitted request can be computed to its end.


def most_pages(driver: Scenario) -> list[int]:
    """The longest prompt of whole pages that fits into an empty cache."""
    return list(range(1, longest_prompt_tokens(driver) // driver.config.page_size + 1 - int(driver.config.bigram)))


@clause("REQ-5", needs=LOOKING, bigram=True)
def test_a_request_that_fits_an_empty_cache_is_admitted_when_all_others_have_finished(driver: Scenario) -> None:
    running: list[Admission] = []
    for first in range(100, 200, 10):
        admission = driver.admit(driver.key_of([first, first + 1, first + 2]))
        if admission is None:
            break
        running.append(admission)
    assert 2 <= len(running) < 10, f"REQ-5: expected 2 to 9 admitted requests, got {len(running)}"
    assert driver.admit(driver.key_of(most_pages(driver))) is None, (
        "POOL-3: expected a request as large as the cache to be refused while others run"
    )
    for admission in running:
        driver.finish(admission.request)
    admission = driver.admit_pages(most_pages(driver))
    driver.finish(admission.request)
    driver.require_requests_released("all have finished")


@clause("REQ-5", "EVICT-1", needs=LOOKING, page_sizes=[1, 16], bigram=True)
def test_a_cache_full_of_finished_prompts_admits_a_request(driver: Scenario) -> None:
    for first in range(100, 140, 10):
        run_request(driver, range(first, first + 6))
    assert run_request(driver, most_pages(driver)) == 0, "REQ-5: nothing of this prompt was cached"
    hit = driver.hit_pages(most_pages(driver))
    assert hit == len(most_pages(driver)), f"REQ-5: a prompt as long as the cache was computed, {hit} pages hit"


@clause("REQ-5", needs=LOOKING, bigram=True)
def test_an_admitted_request_can_be_computed_when_no_slot_is_free(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    pages = [1, 2, 3, 4, 5, 6]
    admission = driver.admit_pages(pages)
    slots = driver.allocate_all()
    states = list(iter(driver.allocate_state, None)) if driver.has(MAMBA) else []
    for count in (3, 4, 6):
        driver.checkpoint(admission.request, driver.tokens_in_pages(count))
    driver.finish(admission.request)
    for state in states:
        driver.free_state(state)
    driver.free(slots)
    driver.require_requests_released("a request finished that had no room but its own")
    driver.find(pages)


@clause("REQ-5", "EVICT-1", needs=LOOKING, components=(MAMBA,))
def test_without_a_slot_for_a_state_a_chunk_is_not_cached(driver: Scenario) -> None:
    admission = driver.admit_pages([1, 2, 3])
    states = list(iter(driver.allocate_state, None))
    table = driver.checkpoint(admission.request, driver.tokens_in_pages(2))
    assert table.tolist() == admission.table.tolist(), "REQ-5: a chunk that cannot be cached changed the table"
    assert driver.hit_pages([1, 2]) == 0, "MATCH-4: no state was left for the chunk, and it hits"
    driver.free_state(states.pop())
    driver.checkpoint(admission.request, driver.tokens_in_pages(3))
    hit, expected = driver.hit_pages([1, 2, 3]), cached_early(driver, 3)
    assert hit == expected, f"REQ-5: there is a slot for a state again: expected {expected} pages to hit, got {hit}"
    driver.finish(admission.request)
    for state in states:
        driver.free_state(state)


@clause("REQ-5", needs=LOOKING, page_sizes=[1, 16, 64], bigram=True)
def test_an_extension_without_room_leaves_the_request_unchanged(driver: Scenario) -> None:
    admission = driver.admit_pages([1, 2])
    driver.checkpoint(admission.request, driver.tokens_in_pages(2))
    slots = driver.allocate_all()
    before = snapshot_values(driver.snapshot())
    reserved = driver.adapter.reserved_tokens(driver.tokens_in_pages(2))
    for _ in range(3):
        table = driver.extend(admission.request, [*driver.prompt([3, 4]), *range(reserved)])
        assert table is None, f"POOL-3: no slot is left, and the table grew to {table}"
        assert snapshot_values(driver.snapshot()) == before, "POOL-3: an extension that does not fit changed the cache"
    driver.free(slots)
    driver.decode(admission, [3, 4])
    driver.finish(admission.request)
    driver.find([1, 2, 3, 4])
    driver.require_requests_released("a request finished that had to wait")


@clause("REQ-5", needs=LOOKING, components=(MAMBA,))
@pytest.mark.parametrize("pages", [[1, 2], [1, 2, 3], [7]], ids=str)
def test_one_state_suffices_for_one_request(driver: Scenario, pages: list[int]) -> None:
    small = driver.open_variant(capacity_tokens={**driver.config.capacity_tokens, MAMBA: 1})
    for prompt in ([1, 2], pages, pages):
        run_request(small, prompt)
        small.require_requests_released(f"a request for {prompt} finished")
    small.adapter.close()
