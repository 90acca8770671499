"""The generator: equal traces for equal seeds, with the shape of public traces."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean, median

import pytest

from hicache.testing.traces import BLOCK_TOKENS, SHORT_TRACE, TraceRequest, generate_trace

SEEDS = range(5)


@pytest.fixture(name="requests", params=SEEDS)
def _requests(request: pytest.FixtureRequest) -> list[TraceRequest]:
    return list(generate_trace(SHORT_TRACE, request.param))


def test_the_seed_decides_everything() -> None:
    first, again, other = (list(generate_trace(SHORT_TRACE, seed)) for seed in (1, 1, 2))
    assert first == again, "two traces of seed 1 differ"
    assert first != other, "the traces of seeds 1 and 2 are equal"


def test_a_trace_is_the_same_on_every_platform() -> None:
    request = next(generate_trace(SHORT_TRACE, 0))
    assert request == TraceRequest(0, 1844, 993, (0, 1, 2, 3)), f"seed 0 begins with {request}"


def test_lengths_fit_blocks_and_limits(requests: list[TraceRequest]) -> None:
    assert len(requests) == SHORT_TRACE.requests, f"{len(requests)} requests, {SHORT_TRACE.requests} were asked for"
    for request in requests:
        blocks = -(-request.input_length // BLOCK_TOKENS)
        assert len(request.hash_ids) == blocks, f"{request} should have {blocks} blocks"
        assert 0 < request.input_length <= SHORT_TRACE.longest_input, f"{request} is longer than asked for"


def test_arrivals_are_in_order(requests: list[TraceRequest]) -> None:
    arrivals = [request.timestamp_ms for request in requests]
    assert arrivals == sorted(arrivals), "a request arrives before the one in front of it"


def test_ids_count_up_in_order_of_appearance(requests: list[TraceRequest]) -> None:
    appeared = list(dict.fromkeys(block for request in requests for block in request.hash_ids))
    assert appeared == list(range(len(appeared))), f"ids appear as {appeared[:20]}..."


def test_equal_ids_are_equal_prefixes_of_equal_length(requests: list[TraceRequest]) -> None:
    places: dict[int, tuple[object, ...]] = {}
    for request in requests:
        for place, block in enumerate(request.hash_ids):
            length = min(BLOCK_TOKENS, request.input_length - place * BLOCK_TOKENS)
            seen = (request.hash_ids[:place], length)
            assert places.setdefault(block, seen) == seen, f"block {block} stands for {places[block]} and for {seen}"


def test_conversations_share_and_grow(requests: list[TraceRequest]) -> None:
    seen: set[int] = set()
    repeated = total = 0
    for request in requests:
        repeated += len(seen.intersection(request.hash_ids))
        total += len(request.hash_ids)
        seen.update(request.hash_ids)
    assert 0.2 < repeated / total < 0.9, f"{repeated} of {total} blocks were seen before: no traffic of conversations"


def test_lengths_have_a_heavy_tail(requests: list[TraceRequest]) -> None:
    lengths = [request.input_length for request in requests]
    assert mean(lengths) > 1.1 * median(lengths), f"mean {mean(lengths)} is not above median {median(lengths)}"


def test_a_prompt_shorter_than_a_block_is_one_partial_block() -> None:
    shape = replace(SHORT_TRACE, requests=3, system_length_median=1, message_length_median=1, spread=0.0)
    first = next(generate_trace(shape, 0))
    assert (first.input_length, first.hash_ids) == (2, (0,)), f"a system prompt and a message of one token: {first}"
