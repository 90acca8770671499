"""Requests alone: what a cache of any design owes its requests. No test calls a verb of the tree.

What a test expects is computed from the geometry of the configuration: the unit of hits, windows, the ends at which a
state is cached, when computed tokens are cached, and what fits. After each verb the driver checks every law, and each
look-up and admission against an oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.geometry import Publish
from hicache.types import SHARED, EventKind, Key, Namespace

from .scenario import FULL, MAMBA, Scenario

REQUESTS = (Capability.REQUESTS,)
LOOKING = (*REQUESTS, Capability.SNAPSHOT, Capability.SIZES)

OTHERS = 1000
"""Prompts that share nothing with those of a test begin with this page."""


def expected_pages(driver: Scenario, asked: int, chunks: Sequence[int], end: int | None = None) -> int:
    """How many of the pages that are asked for are cached of a prompt that was computed in chunks.

    `chunks`: the tokens that each chunk ended at. `end`: the tokens that a request finished with; None: it runs still,
    or was aborted. A hit ends at a state, and a state is cached only where a chunk ended with whole pages.
    """
    size, publish = driver.config.page_size, driver.geometry.publish
    ends = [*(chunks if publish is not Publish.REQUEST else ()), *(() if end is None else (end,))]
    if driver.has(MAMBA):
        ends = [tokens for tokens in ends if tokens % size == 0 and tokens <= asked * size]
    return min(max(ends, default=0) // size, asked)


def prompt_of(driver: Scenario, pages: Sequence[int], tokens: int) -> Key:
    """The first tokens of a prompt of these pages, then of other pages, without an end."""
    size = driver.config.page_size
    others = range(OTHERS, OTHERS + max(0, -(-tokens // size) - len(pages)))
    return driver.key(driver.prompt([*pages, *others])[:tokens])


def hit_of(driver: Scenario, admission: Admission) -> int:
    """How many tokens of whole pages a request found, shared or copied."""
    size = driver.config.page_size
    return (admission.cached_tokens + admission.copied_tokens) // size * size


def compute(driver: Scenario, admission: Admission, tokens: int) -> None:
    """Compute and cache a chunk that ends at so many tokens, unless they are cached already."""
    if tokens > admission.cached_tokens + admission.copied_tokens:
        driver.checkpoint(admission.request, tokens)


def room(driver: Scenario) -> int:
    """The tokens of the longest uncached prompt that is admitted without an eviction; of 1 block or more."""
    geometry, step = driver.geometry, driver.geometry.finest
    free = geometry.in_blocks({name: sizes.free for name, sizes in driver.adapter.sizes().items()})
    limit = driver.config.capacity_tokens[FULL]
    fitting = [
        tokens
        for tokens in range(step, limit + 1, step)
        if geometry.fits(geometry.blocks_of(driver.slot_tokens(tokens)), free)
    ]
    return max(fitting, default=step)


def pressed(driver: Scenario, prepare: Callable[[Scenario], None], pages: Sequence[int] = ()) -> Iterator[Scenario]:
    """Prepare one cache after the other, and admit and abort a prompt that evicts a little more each time.

    The prompt begins with these pages. It starts with the longest one that evicts nothing, and grows by the smallest
    block until it is not admitted. Yields each cache once the prompt is gone again.
    """
    tokens = 0
    while True:
        other = driver.open_variant()
        prepare(other)
        tokens = tokens + driver.geometry.finest if tokens else room(other)
        admission = other.admit(prompt_of(other, pages, tokens))
        if admission is None:
            other.adapter.close()
            return
        other.abort(admission.request)
        yield other
        other.adapter.close()


# KEY-1, MATCH-1: what is found.


@clause("KEY-1", "MATCH-1", needs=REQUESTS, components=(FULL,), verbs=False)
def test_the_whole_pages_of_a_finished_prompt_are_cached(driver: Scenario) -> None:
    driver.run([1, 2, 3])
    # A shorter hit would end where no state is.
    shorter = 0 if driver.has(MAMBA) else 1
    for pages, expected in (
        ([1, 2, 3], 3),
        ([1, 2, 3, 4], 3),
        ([1, 2], 2 * shorter),
        ([1, 9, 3], shorter),
        ([2, 3], 0),
    ):
        found = driver.cached_pages(pages)
        assert found == expected, f"MATCH-1: (1, 2, 3) was computed: expected {expected} pages of {pages}, got {found}"


@clause("KEY-1", "MATCH-1", needs=REQUESTS, verbs=False)
def test_a_prompt_that_ends_inside_a_page_is_cached_up_to_the_page(driver: Scenario) -> None:
    size = driver.config.page_size
    for tail in range(1, size):
        first = 10 * tail
        driver.run([first, first + 1], tail)
        expected, found = 0 if driver.has(MAMBA) else 2, driver.cached_pages([first, first + 1])
        assert found == expected, (
            f"KEY-1: two pages of {size} and {tail} tokens: expected {expected} pages, got {found}"
        )


@clause("MATCH-1", needs=REQUESTS, verbs=False)
def test_a_hit_leaves_the_tokens_that_must_be_computed(driver: Scenario) -> None:
    driver.run([1, 2])
    whole, found = 2 * driver.config.page_size, hit_of(driver, driver.admit_pages([1, 2]))
    if not driver.geometry.recomputed_tokens:
        expected = whole
    else:
        expected = 0 if driver.has(MAMBA) else (whole - 1) // driver.config.page_size * driver.config.page_size
    assert found == expected, (
        f"MATCH-1: {whole} tokens are cached and asked for: expected a hit of {expected}, got {found}"
    )
    longer = hit_of(driver, driver.admit_pages([1, 2], tail=1))
    assert longer == whole, f"MATCH-1: one token more is asked for: expected a hit of {whole}, got {longer}"


@clause("MATCH-1", "REQ-3", needs=REQUESTS, verbs=False)
@pytest.mark.parametrize("offsets", [(1,), (-1,), (1, 2), (-1, 1), (0, 1)], ids=str)
def test_chunks_may_end_inside_a_page(driver: Scenario, offsets: tuple[int, ...]) -> None:
    size = driver.config.page_size
    admission = driver.admit_pages([1, 2, 3], tail=1)
    chunks = sorted({min(max(2 * size + offset, 1), 3 * size) for offset in offsets})
    for tokens in (*chunks, 3 * size):
        # The driver compares the state after exactly these tokens, and what is cached, with what was computed.
        driver.checkpoint(admission.request, tokens)
    driver.finish(admission.request)
    found, expected = driver.cached_pages([1, 2, 3]), expected_pages(driver, 3, (*chunks, 3 * size), 3 * size + 1)
    assert found == expected, f"MATCH-1: chunks ended at {chunks}: expected {expected} pages cached, got {found}"


@clause("MATCH-1", needs=REQUESTS, verbs=False)
def test_a_hit_ends_where_every_component_can_serve_it(driver: Scenario) -> None:
    size = driver.config.page_size
    admission = driver.admit_pages([1, 2, 3], tail=1)
    driver.checkpoint(admission.request, 2 * size)
    driver.finish(admission.request)
    found, expected = driver.cached_pages([1, 2, 3]), expected_pages(driver, 3, [2 * size], 3 * size + 1)
    assert found == expected, f"MATCH-1: a chunk ended after two of three pages: expected {expected}, got {found}"
    again = hit_of(driver, driver.admit_pages([1, 2, 3, 4]))
    assert again == expected * size, f"MATCH-1: expected a hit of {expected} pages, got {again} tokens"


@clause("MATCH-1", "MATCH-3", needs=LOOKING, components=(FULL,), verbs=False)
def test_a_shorter_hit_needs_the_window_before_its_own_end(driver: Scenario) -> None:
    size = driver.config.page_size
    window = driver.config.sliding_window_size or size
    last = 2 * size + window + (1 if size > 1 else 0)
    last += last % size == 0 and size > 1
    running: dict[int, Admission] = {}

    def compute_past_the_window(other: Scenario) -> None:
        admission = other.admit(prompt_of(other, [1, 2], last + 2))
        assert admission is not None, f"REQ-5: nothing else runs: expected a prompt of {last + 2} tokens to be admitted"
        other.checkpoint(admission.request, 2 * size)
        other.checkpoint(admission.request, last)
        running[id(other)] = admission

    for other in pressed(driver, compute_past_the_window, [50]):
        # The driver compares the look-up with what each component has at each length.
        other.finish(running.pop(id(other)).request)
        other.lookup(prompt_of(other, [1, 2], last + 2))


@clause("KEY-2", "SEC-3", needs=(*REQUESTS, Capability.NAMESPACES), verbs=False)
def test_a_prompt_is_cached_in_its_namespace_alone(driver: Scenario) -> None:
    driver.run([1, 2])
    other = Namespace(lora=None, salt="another", tenant=None)
    assert driver.cached_pages([1, 2], SHARED) == 2, "KEY-2: expected the prompt in the namespace that computed it"
    found = driver.cached_pages([1, 2], other)
    assert found == 0, f"SEC-3: expected nothing cached under another salt, got {found} pages"


@clause("MATCH-14", needs=REQUESTS, verbs=False)
def test_nothing_is_found_of_an_unknown_prompt(driver: Scenario) -> None:
    found = driver.cached_pages([7, 8])
    assert found == 0, f"MATCH-14: nothing was computed: expected 0 pages, got {found}"


@clause("SEC-2", needs=(*REQUESTS, Capability.COLLISIONS), verbs=False)
def test_a_prompt_whose_hashes_collide_finds_nothing_of_another(driver: Scenario) -> None:
    def found(*pages: int) -> int:
        return driver.adapter.lookup(driver.key(driver.prompt(pages))) // driver.config.page_size

    # A table with one entry for each hash loses what collides. What counts here is that nothing else is served for it.
    driver.may_miss = True
    with driver.adapter.colliding():
        driver.run([1, 2, 3])
        for pages in ((4, 5, 6), (4, 2, 3), (2, 1, 3), (3, 1, 2)):
            assert found(*pages) == 0, f"SEC-2: all hashes are equal: expected nothing of {pages}, got {found(*pages)}"
        driver.run([4, 2, 3])
        for prompt in ([1, 2, 3], [4, 2, 3]):
            # The driver compares the bytes of any hit with those of the prompt.
            driver.abort(driver.admit_pages(prompt, tail=1).request)


# REQ-1: what is cached, and when.


@clause("REQ-1", needs=REQUESTS, verbs=False)
def test_pages_are_cached_when_the_geometry_says(driver: Scenario) -> None:
    size, is_scheduled = driver.config.page_size, driver.geometry.publish is Publish.SCHEDULED
    admission = driver.admit_pages([1, 2], tail=1)
    phases = {"its admission": driver.cached_pages([1, 2])}
    driver.checkpoint(admission.request, 2 * size)
    phases["a chunk of two pages"] = driver.cached_pages([1, 2])
    driver.finish(admission.request)
    phases["its end"] = driver.cached_pages([1, 2])
    expected = {
        "its admission": 2 if is_scheduled and not driver.has(MAMBA) else 0,
        "a chunk of two pages": expected_pages(driver, 2, [2 * size]),
        "its end": expected_pages(driver, 2, [2 * size], 2 * size + 1),
    }
    assert phases == expected, f"REQ-1: of a request's two pages expected {expected} after each phase, got {phases}"


@clause("REQ-1", needs=REQUESTS, verbs=False)
def test_decoded_tokens_are_cached_with_their_prompt(driver: Scenario) -> None:
    admission = driver.admit_pages([1, 2])
    driver.decode(admission, [3, 4])
    driver.finish(admission.request)
    found = driver.cached_pages([1, 2, 3, 4])
    assert found == 4, f"REQ-1: two pages were decoded after a prompt of two: expected 4 pages cached, got {found}"


@clause("REQ-1", "REQ-4", "POOL-1", needs=LOOKING, verbs=False)
@pytest.mark.parametrize("chunks", [(3,), (1, 3), (2, 3)], ids=str)
def test_equal_prompts_in_one_batch_each_read_their_own_pages(driver: Scenario, chunks: tuple[int, ...]) -> None:
    ends = [driver.tokens_in_pages(count) for count in chunks]
    admissions = [driver.admit_pages([1, 2, 3], tail=1) for _ in range(2)]
    for tokens in ends:
        for admission in admissions:
            # The driver compares the bytes at every slot of the table with those that were written for the prompt.
            compute(driver, admission, tokens)
    third = driver.admit_pages([1, 2, 3], tail=1)
    for admission in (*admissions, third):
        driver.finish(admission.request)
    found, expected = driver.cached_pages([1, 2, 3]), expected_pages(driver, 3, ends, ends[-1] + 1)
    assert found == expected, f"REQ-1: three requests computed three pages: expected {expected} cached, got {found}"


@clause("REQ-1", "POOL-1", needs=LOOKING, verbs=False)
def test_a_prompt_that_is_sent_again_while_it_runs_is_computed_beside_it(driver: Scenario) -> None:
    whole = driver.tokens_in_pages(4)
    first = driver.admit_pages([1, 2, 3, 4], tail=1)
    driver.checkpoint(first.request, driver.tokens_in_pages(2))
    second = driver.admit_pages([1, 2, 3, 4], tail=1)
    for admission in (second, first):
        compute(driver, admission, whole)
    driver.abort(first.request)
    driver.finish(second.request)
    found, expected = driver.cached_pages([1, 2, 3, 4]), expected_pages(driver, 4, [whole], whole + 1)
    assert found == expected, f"REQ-1: a request computed four pages and finished: expected {expected}, got {found}"


@clause("REQ-11", needs=LOOKING, verbs=False)
def test_nothing_is_cached_that_no_request_computed(driver: Scenario) -> None:
    # After each verb the driver compares what is cached with what was computed.
    first = driver.admit_pages([1, 2, 3, 4], tail=1)
    driver.checkpoint(first.request, driver.tokens_in_pages(2))
    second = driver.admit_pages([1, 2, 5], tail=1)
    driver.abort(first.request)
    driver.decode(second, [6])
    driver.finish(second.request)
    found, whole = driver.cached_pages([1, 2, 3, 4]), driver.tokens_in_pages(2)
    expected = 4 if driver.geometry.publish is Publish.SCHEDULED else expected_pages(driver, 2, [whole], whole + 1)
    assert found <= expected, f"REQ-11: two of four pages were computed: expected {expected} cached, got {found}"


@clause("POOL-1", "REQ-11", needs=LOOKING, verbs=False)
def test_what_running_requests_share_has_equal_tokens_and_is_not_cached_before_it_is_computed(driver: Scenario) -> None:
    whole = driver.tokens_in_pages(3)
    first = driver.admit_pages([1, 2, 3], tail=1)
    # The driver checks after each verb who has which block, what is cached, and its bytes.
    driver.abort(driver.admit_pages([1, 2, 3], tail=1).request)
    second = driver.admit_pages([1, 9, 3], tail=1)
    driver.abort(first.request)
    compute(driver, second, whole)
    driver.finish(second.request)
    found, expected = driver.cached_pages([1, 9, 3]), expected_pages(driver, 3, [whole], whole + 1)
    assert found == expected, f"REQ-1: a request computed three pages: expected {expected} cached, got {found}"


# EVICT-1, EVICT-2: what makes room.


@clause("EVICT-1", needs=LOOKING, verbs=False)
def test_nothing_cached_is_evicted_while_free_slots_suffice(driver: Scenario) -> None:
    driver.run([1, 2, 3])
    driver.run([4], tail=1)
    admission = driver.admit(prompt_of(driver, [100], room(driver)))
    assert admission is not None, (
        f"REQ-5: expected a prompt of {room(driver)} tokens to be admitted, as so many are free"
    )
    driver.abort(admission.request)
    found = driver.cached_pages([1, 2, 3])
    assert found == 3, f"EVICT-1: the request took free slots alone: expected 3 pages to stay cached, got {found}"


@clause("EVICT-13", needs=LOOKING, verbs=False)
def test_a_request_that_is_not_admitted_evicts_nothing(driver: Scenario) -> None:
    driver.run([1, 2, 3])
    admission = driver.admit(prompt_of(driver, [100], room(driver)))
    assert admission is not None, f"REQ-5: expected {room(driver)} tokens to be admitted, as so many are free"
    too_many = driver.config.capacity_tokens[FULL]
    assert driver.admit(prompt_of(driver, [200], too_many)) is None, f"POOL-3: {too_many} tokens do not fit beside it"
    assert driver.extend(admission.request, [0] * too_many) is None, f"POOL-3: it does not fit with {too_many} more"
    driver.abort(admission.request)
    found = driver.cached_pages([1, 2, 3])
    assert found == 3, f"EVICT-13: a request was not admitted or extended: expected 3 pages to stay cached, got {found}"


@clause("REQ-9", needs=REQUESTS, verbs=False)
def test_an_extension_evicts_what_is_cached(driver: Scenario) -> None:
    for page in range(10, 10 + driver.config.capacity_tokens[FULL] // driver.config.page_size):
        driver.run([page], tail=1)
    request, granted = driver.admit_pages([1], tail=1).request, 0
    # The driver compares each refusal with what fits into an empty cache.
    while driver.extend(request, [7] * driver.geometry.finest) is not None:
        granted += 1
    driver.abort(request)
    assert granted, "REQ-9: nothing else ran: expected a short request to be extended, got a refusal"


@clause("EVICT-2", needs=LOOKING, verbs=False)
def test_a_prefix_that_was_used_outlives_one_that_was_not(driver: Scenario) -> None:
    def use_page_1_last(other: Scenario) -> None:
        if other.has(MAMBA):
            other.run([1])  # a use can end there only if a state is there
        other.run([1, 2])
        other.run([3])
        # The use ends inside the first prompt. It is a use of page 1 alone.
        other.abort(other.admit_pages([1], tail=1).request)

    left = [(other.cached_pages([1, 2]), other.cached_pages([3])) for other in pressed(driver, use_page_1_last, [100])]
    assert left[0] == (2, 1), f"EVICT-1: nothing had to go: expected 2 pages of (1, 2) and 1 of (3), got {left[0]}"
    early = [pages for pages in left if pages[0] == 0 and pages[1]]
    assert not early, f"EVICT-2: page 1 was used after page 3: expected page 3 to go first, got {left}"
    assert (1, 0) in left, f"EVICT-2: page 1 was used last: expected it to be left alone at some time, got {left}"


@clause("EVICT-2", "POOL-1", "REQ-3", needs=LOOKING, verbs=False)
def test_a_request_never_evicts_the_prefix_that_it_found(driver: Scenario) -> None:
    def run_two_prompts(other: Scenario) -> None:
        other.run([1, 2])
        other.run([3])

    # The prefix of the request is what was used longest ago. The driver checks its table and its bytes.
    hits = sum(1 for _ in pressed(driver, run_two_prompts, [1, 2]))
    assert hits, "REQ-5: a prompt that fits beside all that is cached: expected it to be admitted"


def compute_twice(driver: Scenario, last: int) -> None:
    """Two requests compute two pages side by side. `last`: which of them ends last."""
    admissions = [driver.admit_pages([1, 2], tail=1) for _ in range(2)]
    for admission in admissions:
        compute(driver, admission, driver.tokens_in_pages(2))
    for admission in (admissions[1 - last], admissions[last]):
        driver.finish(admission.request)


@clause("MATCH-1", needs=LOOKING, verbs=False)
@pytest.mark.parametrize("last", [0, 1])
def test_a_page_is_found_as_long_as_a_copy_of_it_stays(driver: Scenario, last: int) -> None:
    # The driver compares each look-up with what the cache has, in any copy.
    found = [other.cached_pages([1, 2]) for other in pressed(driver, lambda other: compute_twice(other, last), [100])]
    expected = expected_pages(driver, 2, [2 * driver.config.page_size], 2 * driver.config.page_size + 1)
    assert found[0] == expected, f"MATCH-1: nothing had to go: expected {expected} pages of (1, 2), got {found}"


@clause("EVENT-1", needs=(*LOOKING, Capability.EVENTS, Capability.HASHES), verbs=False)
def test_a_page_is_removed_from_the_log_with_its_last_copy(driver: Scenario) -> None:
    for other in pressed(driver, lambda other: compute_twice(other, 1), [100]):
        found, key = other.cached_pages([1, 2]), other.key(other.prompt([1, 2]))
        stored: set[str] = set()
        for event in other.adapter.events():
            if event.component == FULL:
                change = stored.update if event.kind is EventKind.STORED else stored.difference_update
                change(event.blocks)
        missing = [name for name in other.adapter.page_hashes(key)[:found] if name not in stored]
        assert not missing, f"EVENT-1: {found} pages are found: expected them in the log, which lacks {missing}"


# REQ-2, REQ-5: what is given back, and who is admitted.


@clause("REQ-2", needs=LOOKING, verbs=False)
def test_every_slot_is_free_or_evictable_when_all_requests_have_ended(driver: Scenario) -> None:
    admissions = [driver.admit_pages([1, 2, first], tail=1) for first in (3, 4, 3)]
    compute(driver, admissions[0], driver.tokens_in_pages(3))
    driver.abort(admissions[0].request)
    driver.finish(admissions[1].request)
    driver.abort(admissions[2].request)
    for component, sizes in driver.adapter.sizes().items():
        capacity = driver.config.capacity_tokens[component]
        assert sizes.free + sizes.evictable == capacity, (
            f"REQ-2: all requests have ended: expected {capacity} slots of {component} free or evictable, got {sizes}"
        )


@clause("REQ-5", needs=LOOKING, verbs=False)
def test_the_longest_prompt_that_fits_is_admitted_beside_its_own_prefix(driver: Scenario) -> None:
    key, size = prompt_of(driver, [1], room(driver)), driver.config.page_size
    shorter = driver.admit(driver.key(key.tokens[: (len(key.tokens) - 1) // size * size]))
    assert shorter is not None, "REQ-5: nothing else runs: expected a prompt that fits an empty cache to be admitted"
    driver.finish(shorter.request)
    # The state that a hit ends at, and the request's own copy of it, may not both fit: then there is no hit.
    admission = driver.admit(key)
    assert admission is not None, (
        f"REQ-5: nothing else runs, and {len(key.tokens)} tokens fit an empty cache: expected them to be admitted"
    )


# REQ-10: a request is preempted, and is resumed.


@clause("REQ-10", needs=LOOKING, verbs=False)
def test_what_a_preempted_request_had_can_be_evicted(driver: Scenario) -> None:
    free = room(driver)
    admission = driver.admit_pages([1, 2, 3], tail=1)
    compute(driver, admission, driver.tokens_in_pages(2))
    driver.preempt(admission.request)
    other = driver.admit(prompt_of(driver, [100], free))
    assert other is not None, f"REQ-10: nothing runs: expected {free} tokens to be admitted, as so many fit"
    driver.abort(other.request)
    driver.abort(admission.request)


@clause("REQ-10", needs=REQUESTS, verbs=False)
@pytest.mark.parametrize("is_evicted", [False, True], ids=["cached", "evicted"])
def test_a_request_that_is_resumed_is_computed_and_cached_again(driver: Scenario, is_evicted: bool) -> None:
    whole = driver.tokens_in_pages(4)
    admission = driver.admit_pages([1, 2], tail=0)
    compute(driver, admission, driver.tokens_in_pages(2))
    driver.decode(admission, [3, 4])
    driver.preempt(admission.request)
    for page in range(100, 100 + is_evicted * driver.config.capacity_tokens[FULL] // driver.config.page_size):
        driver.run([page], tail=1)
    # The driver compares what is found, what is in the table, and the state, with what all tokens of the request need.
    again = driver.resume(admission.request)
    assert again is not None, "REQ-10: nothing else runs: expected the request to be admitted again"
    for tokens in (driver.tokens_in_pages(3), whole):
        compute(driver, again, tokens)
    found = driver.cached_pages([1, 2, 3, 4])
    expected = expected_pages(driver, 4, [driver.tokens_in_pages(3), whole])
    assert found == expected, f"REQ-10: a resumed request computed 4 pages: expected {expected} cached, got {found}"
    driver.finish(again.request)


@clause("LOCK-13", verbs=False)
def test_a_pinned_prompt_outlives_its_request(driver: Scenario) -> None:
    pages = driver.config.capacity_tokens[FULL] // driver.config.page_size
    driver.run([1, 2])
    receipts = [driver.pin(driver.key_of([1, 2])) for _ in range(2)]
    for start, receipt in zip((100, 100 + pages), receipts, strict=True):
        # After each verb the driver looks up what is pinned.
        for page in range(start, start + pages):
            driver.run([page], tail=1)
        driver.unpin(receipt)
    for page in range(100 + 2 * pages, 100 + 3 * pages):
        driver.run([page], tail=1)
    found = driver.cached_pages([1, 2])
    assert not found, (
        f"LOCK-13: no pin is left, and all slots were used since: expected nothing cached, got {found} pages"
    )
