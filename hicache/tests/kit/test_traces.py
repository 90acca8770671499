"""Traces: how they are read, generated, and turned into tokens and pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest

from hicache.errors import TraceError
from hicache.testing.traces import (
    BLOCK_TOKENS,
    SHIPPED_SEED,
    SHIPPED_TRACE,
    SHORT_TRACE,
    Trace,
    TraceRequest,
    generate_trace,
    request_tokens,
    write_trace,
)
from hicache.testing.traces.format import page_runs
from hicache.tests.kit.replays import request

GOOD = {"timestamp": 3, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
REQUEST = TraceRequest(timestamp_ms=3, input_length=700, output_length=5, hash_ids=(0, 1))

MALFORMED = {
    "no JSON": "{",
    "an empty line": "",
    "a list": "[]",
    "a number": "1",
    "not UTF-8": "\udcff",
    "nested too deep": "[" * 100_000,
    "an integer of too many digits": '{"timestamp": ' + "9" * 5000 + "}",
    **{f"{field} missing": json.dumps({k: v for k, v in GOOD.items() if k != field}) for field in GOOD},
    **{
        f"{field} {value!r}": json.dumps(GOOD | {field: value})
        for field in ("timestamp", "input_length", "output_length")
        for value in (True, "7", 7.0, None, -1, float("nan"), [7])
    },
    **{
        f"hash_ids {ids!r}": json.dumps(GOOD | {"hash_ids": ids})
        for ids in (None, "01", 2, {"0": 1}, [0], [0, 1, 2], [], [0, -1], [0, True], [0, 1.0], [0, None], [0, 2**31])
    },
}


MALFORMED |= {
    f"block_size {size!r}": json.dumps(GOOD | {"block_size": size}) for size in (0, 513, "64", True, None, 64)
}


def write_lines(path: Path, *lines: str) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))
    return path


def test_a_written_trace_reads_back(tmp_path: Path) -> None:
    requests = [REQUEST, TraceRequest(9, 512, 0, (2,)), TraceRequest(9, 0, 1, ()), TraceRequest(9, 65, 0, (2, 3), 64)]
    path = tmp_path / "trace.jsonl"
    write_trace(path, requests)
    assert list(Trace(path, skip_bad=False, limit=None)) == requests, "expected the trace that was written"


def test_fields_that_the_format_does_not_name_are_ignored(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD | {"user": "someone"}))
    assert list(Trace(path, skip_bad=False, limit=None)) == [REQUEST], "an additional field changed the request"


@pytest.mark.parametrize("line", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_line_is_named(tmp_path: Path, line: str) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD), line)
    requests = iter(Trace(path, skip_bad=False, limit=None))
    assert next(requests) == REQUEST, "the good line before a malformed one was not read"
    with pytest.raises(TraceError, match=r"trace\.jsonl, line 2: .+"):
        next(requests)


def test_the_reason_holds_field_and_value(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD | {"output_length": True}))
    with pytest.raises(TraceError, match="output_length is True"):
        list(Trace(path, skip_bad=False, limit=None))


def test_skip_bad_counts_and_goes_on(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", *MALFORMED.values(), json.dumps(GOOD))
    trace = Trace(path, skip_bad=True, limit=None)
    for reading in ("first", "second"):
        assert list(trace) == [REQUEST], f"the {reading} reading did not find the one good line"
        assert trace.skipped == len(MALFORMED), f"{reading} reading: {trace.skipped} skipped, {len(MALFORMED)} are bad"


def test_a_limit_ends_the_reading_before_what_follows(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD), "malformed")
    assert list(Trace(path, skip_bad=False, limit=1)) == [REQUEST], "a limit of 1 did not give the first request alone"


def test_reading_holds_one_line_at_a_time(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "trace.jsonl", json.dumps(GOOD))
    trace = Trace(path, skip_bad=False, limit=None)
    first, second = iter(trace), iter(trace)
    assert (next(first), next(second)) == (REQUEST, REQUEST), "expected two independent readings of one trace"


SEEDS = range(5)


@pytest.fixture(name="requests", params=SEEDS)
def _requests(request: pytest.FixtureRequest) -> list[TraceRequest]:
    return list(generate_trace(SHORT_TRACE, request.param))


def test_the_seed_decides_everything() -> None:
    first, again, other = (list(generate_trace(SHORT_TRACE, seed)) for seed in (1, 1, 2))
    assert first == again, "two traces of seed 1 differ"
    assert first != other, "the traces of seeds 1 and 2 are equal"


def test_a_trace_is_the_same_on_every_platform() -> None:
    asked = next(generate_trace(SHORT_TRACE, 0))
    assert asked == TraceRequest(0, 1844, 993, (0, 1, 2, 3)), f"seed 0 begins with {asked}"


def test_the_shipped_trace_is_the_generated_one(tmp_path: Path) -> None:
    write_trace(tmp_path / "again.jsonl", generate_trace(SHORT_TRACE, SHIPPED_SEED))
    again = (tmp_path / "again.jsonl").read_bytes()
    assert SHIPPED_TRACE.read_bytes() == again, f"{SHIPPED_TRACE}: write generate_trace(SHORT_TRACE, SHIPPED_SEED) anew"


def test_lengths_fit_blocks_and_limits(requests: list[TraceRequest]) -> None:
    assert len(requests) == SHORT_TRACE.requests, f"{len(requests)} requests, {SHORT_TRACE.requests} were asked for"
    for asked in requests:
        blocks = -(-asked.input_length // BLOCK_TOKENS)
        assert len(asked.hash_ids) == blocks, f"{asked} should have {blocks} blocks"
        assert 0 < asked.input_length <= SHORT_TRACE.longest_input, f"{asked} is longer than asked for"


def test_arrivals_are_in_order(requests: list[TraceRequest]) -> None:
    arrivals = [asked.timestamp_ms for asked in requests]
    assert arrivals == sorted(arrivals), "a asked arrives before the one in front of it"


def test_ids_count_up_in_order_of_appearance(requests: list[TraceRequest]) -> None:
    appeared = list(dict.fromkeys(block for asked in requests for block in asked.hash_ids))
    assert appeared == list(range(len(appeared))), f"ids appear as {appeared[:20]}..."


def test_equal_ids_are_equal_prefixes_of_equal_length(requests: list[TraceRequest]) -> None:
    places: dict[int, tuple[object, ...]] = {}
    for asked in requests:
        for place, block in enumerate(asked.hash_ids):
            length = min(BLOCK_TOKENS, asked.input_length - place * BLOCK_TOKENS)
            seen = (asked.hash_ids[:place], length)
            assert places.setdefault(block, seen) == seen, f"block {block} stands for {places[block]} and for {seen}"


def test_conversations_share_and_grow(requests: list[TraceRequest]) -> None:
    seen: set[int] = set()
    repeated = total = 0
    for asked in requests:
        repeated += len(seen.intersection(asked.hash_ids))
        total += len(asked.hash_ids)
        seen.update(asked.hash_ids)
    assert 0.2 < repeated / total < 0.9, f"{repeated} of {total} blocks were seen before: no traffic of conversations"


def test_lengths_have_a_heavy_tail(requests: list[TraceRequest]) -> None:
    lengths = [asked.input_length for asked in requests]
    assert mean(lengths) > 1.1 * median(lengths), f"mean {mean(lengths)} is not above median {median(lengths)}"


def test_a_prompt_shorter_than_a_block_is_one_partial_block() -> None:
    shape = replace(SHORT_TRACE, requests=3, system_length_median=1, message_length_median=1, spread=0.0)
    first = next(generate_trace(shape, 0))
    assert (first.input_length, first.hash_ids) == (2, (0,)), f"a system prompt and a message of one token: {first}"


PAGE_SIZES = (7, 16, 48, 64, 512, 700, 1024)


def page_prefixes(asked: TraceRequest, page_size: int) -> list[bytes]:
    """The whole prefix up to the end of each whole page, computed the slow way."""
    tokens = request_tokens(asked).tobytes()
    return [tokens[:end] for end in range(4 * page_size, len(tokens) + 1, 4 * page_size)]


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 1300])
def test_as_many_tokens_as_the_request_reads(length: int) -> None:
    tokens = request_tokens(request(length, *range(-(-length // BLOCK_TOKENS))))
    assert tokens.dtype == np.int32, f"tokens are {tokens.dtype}, not int32"
    assert tokens.shape == (length,), f"{length} tokens were asked for, got shape {tokens.shape}"
    assert not (tokens < 0).any(), f"token ids are negative at {np.flatnonzero(tokens < 0).tolist()}"


def test_a_block_reads_the_same_wherever_it_stands() -> None:
    early, late = request_tokens(request(700, 8, 5)), request_tokens(request(1536, 5, 5, 5))
    assert np.array_equal(early[512:], late[:188]), "block 5 reads otherwise in second place than in first"
    assert np.array_equal(late[:512], late[1024:]), "block 5 reads otherwise in third place than in first"


@pytest.mark.parametrize(("one", "other"), [(0, 1), (0, 2**31 - 1), (7, 2**30), (12345, 12346)])
def test_two_blocks_differ_in_every_place(one: int, other: int) -> None:
    same = np.flatnonzero(request_tokens(request(512, one)) == request_tokens(request(512, other)))
    assert not len(same), f"blocks {one} and {other} agree at {same.tolist()}: they would share pages of one token"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_runs_count_whole_pages(page_size: int) -> None:
    for length in (0, 1, 512, 1023, 1024, 1500, 2048):
        asked = request(length, *range(-(-length // BLOCK_TOKENS)))
        whole = sum(pages for _, pages in page_runs(asked, page_size, begun=False))
        begun = sum(pages for _, pages in page_runs(asked, page_size, begun=True))
        assert whole == length // page_size, f"{length} tokens hold {length // page_size} pages, runs say {whole}"
        assert begun == -(-length // page_size), f"{length} tokens begin {-(-length // page_size)} pages, runs: {begun}"


@pytest.mark.parametrize("page_size", PAGE_SIZES)
def test_runs_tell_prefixes_apart_as_tokens_do(page_size: int) -> None:
    requests = [
        request(2048, 0, 1, 2, 3),
        request(2048, 0, 1, 4, 3),
        request(1900, 0, 1, 2, 5),
        request(2048, 1, 0, 2, 3),
        request(1536, 9, 1, 2),
        request(1024, 0, 1),
    ]
    by_number = {
        (prefix, place)
        for asked in requests
        for prefix, pages in page_runs(asked, page_size, begun=False)
        for place in range(pages)
    }
    by_tokens = {prefix for asked in requests for prefix in page_prefixes(asked, page_size)}
    message = f"page {page_size}: {len(by_number)} pages by number, {len(by_tokens)} by tokens"
    assert len(by_number) == len(by_tokens), message
