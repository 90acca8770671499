"""Replays of short traces with storage, for the kit's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.replay import (
    NEVER,
    UNLIMITED,
    HostSettings,
    ReplayOutcome,
    ReplaySettings,
    StorageOutcome,
    StorageSettings,
    replay,
)
from hicache.testing.traces import SHORT_TRACE, Trace, TraceRequest, write_trace
from hicache.types import StopPolicy

HOST = HostSettings("1024", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.STEPPED)
STORAGE = StorageSettings("memory", '{"prefetch_threshold": 0}', StopPolicy.WAIT_COMPLETE, 0, NEVER)
SMALL = replace(SHORT_TRACE, requests=40, system_length_median=300, message_length_median=200, longest_input=2048)


def settings(storage: StorageSettings, capacity: str = "1024", host: HostSettings | None = HOST) -> ReplaySettings:
    return ReplaySettings(
        page_size=512,
        capacity=capacity,
        components=("full",),
        policy=EvictionPolicy.LRU,
        sliding_window_size=512,
        running=1,
        check_every=1,
        host=host,
        storage=storage,
    )


def roomy(storage: StorageSettings) -> ReplaySettings:
    """Settings under which nothing is evicted."""
    return settings(storage, UNLIMITED, replace(HOST, capacity=UNLIMITED))


def replayed(
    directory: Path,
    requests: Sequence[TraceRequest],
    asked: ReplaySettings,
    adapter: type[CacheAdapter] = ReferenceAdapter,
) -> ReplayOutcome:
    path = directory / "trace.jsonl"
    write_trace(path, requests)
    return replay(Trace(path, skip_bad=False, limit=None), adapter, asked, None)


def request(*blocks: int, at_ms: int = 0) -> TraceRequest:
    return TraceRequest(timestamp_ms=at_ms, input_length=512 * len(blocks), output_length=0, hash_ids=blocks)


RETURNING = [request(0, 1), request(2, 3), request(4, 5), request(0, 1)]
"""A prompt that both tiers, with two pages each, have evicted when it comes again."""

TWICE = [request(0, 1, 2, 3), request(0, 1, 2, 3)]


def hits(outcome: ReplayOutcome) -> tuple[int, ...]:
    """Pages hit on the device, on the host and in storage, by a replay that violated no law."""
    assert outcome.broken is None, f"expected no violated law, got {outcome.broken}"
    return tuple(outcome.hit_tokens[tier] // 512 for tier in ("device", "host", "storage"))


def stored(outcome: ReplayOutcome) -> StorageOutcome:
    """The storage part of an outcome."""
    assert outcome.storage is not None, "expected the outcome of the storage tier, got None"
    return outcome.storage
