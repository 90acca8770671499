"""What the requests of a hybrid model hit, in the patterns in which silent losses were reported."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from hicache import open_cache
from hicache.config import HostConfig, Recency
from hicache.request import Request, RequestManager
from hicache.types import Tokens

PAGE = 16
SYSTEM = np.arange(1, 1001, dtype=np.int32)


def opened(states: int, recency: Recency = Recency.USED, host: HostConfig | None = None) -> RequestManager:
    """Requests over a cache with room for all tokens, and for so many states."""
    cache = open_cache(
        capacity_tokens={"full": 1 << 16, "mamba": states},
        page_size=PAGE,
        components=("full", "mamba"),
        mamba_chunk_size=PAGE,
        recency=recency,
        host=host,
    )
    return RequestManager(cache)


def fresh(number: int, count: int) -> Tokens:
    """Tokens that no other number has."""
    return np.arange(count, dtype=np.int32) + 2000 * (number + 1)


def admitted(requests: RequestManager, prompt: Tokens) -> Request:
    request = requests.admit(prompt)
    assert request is not None, f"a prompt of {len(prompt)} tokens fits"
    return request


def serve(requests: RequestManager, prompt: Tokens, stops: Iterable[int] = ()) -> int:
    """Serve a prompt, with a state at these lengths and where the admission asks for one; how much was cached."""
    request = admitted(requests, prompt)
    cached = request.cached_tokens
    for tokens in sorted({*stops, *request.keep_at}):
        if tokens > cached:
            requests.checkpoint(request, tokens)
    requests.finish(request)
    return cached


@pytest.mark.parametrize("slots", [40, 44])
@pytest.mark.parametrize(("recency", "expected"), [(Recency.PATH, 0), (Recency.USED, 0), (Recency.COVERAGE, 256)])
def test_a_fork_at_a_quarter_of_a_chain_that_lost_states(slots: int, recency: Recency, expected: int) -> None:
    requests = opened(slots, recency)
    for number in range(3):
        request = admitted(requests, fresh(number, 1025))
        for tokens in range(64, 1025, 64):
            requests.checkpoint(request, tokens)
        requests.finish(request)
    fork = admitted(requests, np.concatenate((fresh(0, 256), fresh(9, 64))))
    assert fork.cached_tokens == expected, f"expected {expected} tokens with {slots} slots, got {fork.cached_tokens}"


def turns(recency: Recency) -> float:
    """The hit rate of eight sessions of twelve turns each, with two states a turn and 24 slots."""
    requests, hits, total = opened(24, recency), 0, 0
    histories = [np.empty(0, dtype=np.int32)] * 8
    for turn in range(12):
        for session in range(8):
            prompt = np.concatenate((histories[session], fresh(16 * turn + session, 64)))
            request = admitted(requests, prompt)
            hits, total = hits + request.cached_tokens, total + len(prompt)
            requests.checkpoint(request, len(prompt))
            requests.extend(request, fresh(16 * turn + session, 128)[64:])
            histories[session] = request.tokens.copy()
            requests.finish(request)
    return round(hits / total, 3)


def test_a_hit_that_refreshes_one_state_keeps_the_next_turn() -> None:
    rates = {recency: turns(recency) for recency in Recency}
    assert rates == {Recency.PATH: 0.573, Recency.USED: 0.917, Recency.COVERAGE: 0.917}, f"got {rates}"


@pytest.mark.parametrize("host", [None, HostConfig(capacity_tokens={"full": 1 << 15, "mamba": 64})], ids=["", "host"])
def test_prompts_that_share_a_start_hit_it(host: HostConfig | None) -> None:
    requests = opened(128, host=host)
    cached = [serve(requests, np.concatenate((SYSTEM, fresh(number, 100)))) for number in range(50)]
    assert cached == [0, 0, *[992] * 48], f"the second prompt sees where they part, and keeps a state there: {cached}"
