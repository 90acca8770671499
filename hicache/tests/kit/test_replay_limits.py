"""Footprint, LRU and the optimum, each compared with a slow and simple computation."""

from __future__ import annotations

from collections import OrderedDict
from functools import cache
from itertools import accumulate, combinations
from random import Random

import pytest

from hicache.testing.replay import Survey, lru_hit_tokens, optimal_hit_tokens, survey
from hicache.testing.traces import BLOCK_TOKENS, SHORT_TRACE, TraceRequest, generate_trace, request_tokens

PAGE_SIZES = (16, 48, 512, 1024)
SHARES = (1.0, 0.25, 0.05, 0.01)


def request(length: int, *blocks: int) -> TraceRequest:
    return TraceRequest(timestamp_ms=0, input_length=length, output_length=0, hash_ids=blocks)


def pages_of(asked: TraceRequest, page_size: int) -> list[int]:
    """The whole pages, as hashes of their tokens and of all tokens before them."""
    tokens = request_tokens(asked)
    pages = (tokens[end - page_size : end].tobytes() for end in range(page_size, len(tokens) + 1, page_size))
    return list(accumulate(pages, lambda before, page: hash((before, page)), initial=0))[1:]


def plain_lru_hits(requests: list[TraceRequest], page_size: int, capacity_pages: int) -> int:
    """LRU page by page; the last page of a prompt is the least recently used."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for asked in requests:
        pages = pages_of(asked, page_size)
        hits += next((place for place, page in enumerate(pages) if page not in held), len(pages))
        for page in reversed(pages):
            held[page] = None
            held.move_to_end(page)
        while len(held) > capacity_pages:
            held.popitem(last=False)
    return hits * page_size


def best_hits(prompts: list[tuple[int, ...]], capacity: int) -> int:
    """The largest number of block hits, found by trying every set of blocks to keep after every prompt."""

    @cache
    def best(place: int, held: frozenset[int]) -> int:
        if place == len(prompts):
            return 0
        prompt = prompts[place]
        hits = next((count for count, block in enumerate(prompt) if block not in held), len(prompt))
        reachable = sorted(held.union(prompt))
        kept = [frozenset(some) for size in range(capacity + 1) for some in combinations(reachable, size)]
        return hits + max(best(place + 1, some) for some in kept)

    return best(0, frozenset())


def random_prompts(seed: int) -> list[tuple[int, ...]]:
    """Prompts of up to three blocks from a small tree, so that prefixes repeat."""
    random = Random(seed)
    names: dict[tuple[int, ...], int] = {}
    prompts = []
    for _ in range(7):
        path = tuple(random.choice((0, 1)) for _ in range(random.randint(1, 3)))
        prompts.append(tuple(names.setdefault(path[: end + 1], len(names)) for end in range(len(path))))
    return prompts


@pytest.mark.parametrize("capacity", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_the_optimum_is_what_exhaustive_search_finds(seed: int, capacity: int) -> None:
    prompts = random_prompts(seed)
    requests = [request(BLOCK_TOKENS * len(prompt), *prompt) for prompt in prompts]
    found = optimal_hit_tokens(requests, BLOCK_TOKENS, capacity * BLOCK_TOKENS) // BLOCK_TOKENS
    expected = best_hits(prompts, capacity)
    assert found == expected, f"{prompts} with {capacity} blocks: at best {expected} hits, Belady says {found}"


def test_the_optimum_keeps_what_is_needed_first() -> None:
    requests = [request(512, block) for block in (1, 2, 3, 1, 2, 3)]
    assert optimal_hit_tokens(requests, 512, 2 * 512) == 2 * 512, "with 2 of 3 blocks, 2 of 3 later requests can hit"
    assert lru_hit_tokens(requests, 512, 2 * 512) == 0, "LRU drops each of 3 blocks in turn just before its use"


def test_the_optimum_may_keep_a_part_of_a_block() -> None:
    requests = [request(512, block) for block in (1, 1)]
    assert optimal_hit_tokens(requests, 128, 3 * 128) == 3 * 128, "3 of the block's 4 pages fit, and can be hit"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("share", SHARES)
def test_lru_by_blocks_is_lru_by_pages(page_size: int, share: float) -> None:
    requests = list(generate_trace(SHORT_TRACE, 3))[:40]
    pages = int(survey(requests, page_size).footprint_tokens // page_size * share)
    expected = plain_lru_hits(requests, page_size, pages)
    found = lru_hit_tokens(requests, page_size, pages * page_size)
    assert found == expected, f"{pages} pages of {page_size}: page by page {expected} tokens are hit, LRU says {found}"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("share", SHARES)
def test_nothing_hits_more_than_the_optimum(page_size: int, share: float) -> None:
    requests = list(generate_trace(SHORT_TRACE, 4))
    capacity = int(survey(requests, page_size).footprint_tokens * share)
    best, lru = optimal_hit_tokens(requests, page_size, capacity), lru_hit_tokens(requests, page_size, capacity)
    assert best >= lru, f"page {page_size}, {capacity} tokens: LRU hits {lru}, the optimum only {best}"
    if share == 1.0:
        assert best == lru, f"page {page_size}, all fits: LRU hits {lru}, the optimum {best}"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_the_footprint_counts_distinct_pages(page_size: int) -> None:
    requests = list(generate_trace(SHORT_TRACE, 5))[:40]
    begun = sum(1 for asked in requests if asked.input_length % page_size)
    whole = len({page for asked in requests for page in pages_of(asked, page_size)})
    found = survey(requests, page_size)
    expected = Survey(len(requests), sum(r.input_length for r in requests), (whole + begun) * page_size)
    assert found == expected, f"page {page_size}: {whole} whole and {begun} begun pages, survey says {found}"


def test_an_empty_trace_has_no_footprint() -> None:
    assert survey([], 512) == Survey(0, 0, 0), "expected zeros for a trace without requests"
    assert survey([request(0)], 512) == Survey(1, 0, 0), "expected no page for an empty prompt"
