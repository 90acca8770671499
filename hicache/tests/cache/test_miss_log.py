"""The log line about a component that makes most hits vanish: when, once a minute, and for which component."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hicache import CacheConfig
from hicache.cache import UnifiedRadixCache
from hicache.clock import VirtualClock
from hicache.runtime import Runtime

PAGE = 4
CONFIG = CacheConfig({"full": 64, "mamba": 4}, page_size=PAGE, components=("full", "mamba"), mamba_chunk_size=PAGE)


def test_the_component_that_refuses_most_is_named_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = VirtualClock()
    with UnifiedRadixCache.open(CONFIG, replace(Runtime.of(CONFIG), clock=clock)) as cache:
        whole, shorter = cache.key(range(4 * PAGE)), cache.key([*range(3 * PAGE), 99])
        slots, state = cache.allocate(4 * PAGE), cache.allocate_state()
        assert slots is not None, "the cache is empty"
        cache.insert(whole, slots, state)
        lines = []
        # After so many seconds each: the shorter prompt has no state. At the end most is found.
        for seconds in (30, 31, 59, 1, 61):
            clock.advance(seconds)
            for key in [whole, shorter] if seconds == 61 else [shorter]:
                cache.match(key)
            lines.append([record.getMessage() for record in caplog.records])
            caplog.clear()
    line = f"{CONFIG.name}: mamba refused 24 of 24 cached tokens of matched prompts: see docs/guide/hit_rate.md"
    assert lines == [[], [line], [], [line], []], f"expected two lines a minute apart, got {lines}"
