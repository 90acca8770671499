"""Which states requests keep: at intervals, also while they decode, and few enough that every conversation has one."""

from __future__ import annotations

from itertools import count

import pytest

from hicache import CacheConfig, Recency, RequestManager, open_cache

PAGE = 16


def config(states: int, **changes: object) -> CacheConfig:
    """FULL without end, and so many states, one of which a model can give after each page."""
    capacity = {"full": 1 << 16, "mamba": states}
    return CacheConfig(capacity, PAGE, ("full", "mamba"), mamba_chunk_size=PAGE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("bigram", [False, True])
def test_a_request_is_told_where_the_interval_ends_while_it_decodes(bigram: bool) -> None:
    partner = int(bigram)
    with open_cache(config(9, mamba_checkpoint_interval=2 * PAGE, bigram=bigram)) as cache:
        requests = RequestManager(cache)
        request = requests.admit(range(4 * PAGE + partner))
        assert request is not None, "expected a request, got None"
        # After three pages is the last state that the same prompt can read.
        expected = tuple(tokens * PAGE + partner for tokens in (2, 3, 4))
        assert request.keep_at == expected, f"expected states after {expected} tokens, got {request.keep_at}"
        told: list[int] = []
        for token in range(4 * PAGE):
            assert requests.extend(request, [token]), f"expected room for token {token}"
            told += request.keep_at
        expected = (6 * PAGE + partner, 8 * PAGE + partner)
        assert tuple(told) == expected, f"expected states after {expected} tokens, got {told}"
        requests.abort(request)


def cached_of_conversations(most: int | None, recency: Recency) -> int:
    """The tokens that 8 conversations by turns find cached in 6 turns, with room for two states of each."""
    fresh = count()
    histories: list[list[int]] = [[] for _ in range(8)]
    cached = 0
    with open_cache(config(2 * len(histories), mamba_max_states_per_path=most, recency=recency)) as cache:
        requests = RequestManager(cache)
        for history in histories * 6:
            history.extend(next(fresh) for _ in range(4 * PAGE))
            request = requests.admit(history)
            assert request is not None, "expected a request, got None"
            cached += request.cached_tokens
            for tokens in request.keep_at:
                requests.checkpoint(request, tokens)
            answer = [next(fresh) for _ in range(4 * PAGE)]
            assert requests.extend(request, answer), "expected room for the answer"
            history.extend(answer)
            requests.finish(request)
    return cached


@pytest.mark.parametrize("recency", [Recency.USED, Recency.COVERAGE])
def test_conversations_with_one_state_each_do_not_evict_each_other(recency: Recency) -> None:
    all_turns = 8 * sum(turn * 8 * PAGE for turn in range(6))
    unlimited, limited = (cached_of_conversations(most, recency) for most in (None, 1))
    assert unlimited < all_turns // 3, f"expected two states a turn to push others out, got {unlimited} cached"
    assert limited == all_turns, f"expected each turn to find the one before: {all_turns} tokens, got {limited}"
