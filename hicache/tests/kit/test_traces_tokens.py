"""Tokens from block ids, and pages by number: both must agree on which prefixes are equal."""

from __future__ import annotations

import numpy as np
import pytest

from hicache.testing.traces import BLOCK_TOKENS, TraceRequest, request_tokens
from hicache.testing.traces.format import page_runs

PAGE_SIZES = (7, 16, 48, 64, 512, 700, 1024)


def request(length: int, *blocks: int) -> TraceRequest:
    return TraceRequest(timestamp_ms=0, input_length=length, output_length=0, hash_ids=blocks)


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
