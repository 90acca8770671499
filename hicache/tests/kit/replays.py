"""Replays of short traces, for the tests of the replay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hicache.config import EvictionPolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.replay import UNLIMITED, ReplayOutcome, ReplaySettings, replay
from hicache.testing.traces import SHORT_TRACE, Trace, TraceRequest, write_trace
from hicache.tests.kit.hosted_cache import HostedCache

SMALL = replace(SHORT_TRACE, requests=40, system_length_median=300, message_length_median=200, longest_input=2048)
"""The shape of a trace that every kind of cache replays in a second or two."""


SETTINGS = ReplaySettings(
    page_size=512,
    capacity=UNLIMITED,
    components=("full",),
    policy=EvictionPolicy.LRU,
    sliding_window_size=512,
    running=1,
    check_every=1,
    host=None,
    storage=None,
)
"""One request at a time on a device without limit, with a check after each."""


def replayed(
    directory: Path,
    requests: Sequence[TraceRequest],
    asked: ReplaySettings,
    adapter: type[CacheAdapter] | None = None,
) -> ReplayOutcome:
    """The outcome of a replay. Default adapter: HostedCache, and the reference where there is storage."""
    path = directory / "trace.jsonl"
    write_trace(path, requests)
    chosen = adapter or (HostedCache if asked.storage is None else ReferenceAdapter)
    return replay(Trace(path, skip_bad=False, limit=None), chosen, asked, None)


def request(length: int, *blocks: int) -> TraceRequest:
    """A prompt of so many tokens in these blocks."""
    return TraceRequest(timestamp_ms=0, input_length=length, output_length=0, hash_ids=blocks)


def whole_blocks(*blocks: int, at_ms: int = 0) -> TraceRequest:
    """A prompt of whole blocks."""
    return TraceRequest(timestamp_ms=at_ms, input_length=512 * len(blocks), output_length=0, hash_ids=blocks)


def hits(outcome: ReplayOutcome) -> tuple[int, ...]:
    """Pages hit on each tier, the device first, by a replay that violated no law."""
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    return tuple(tokens // 512 for tokens in outcome.hit_tokens.values())
