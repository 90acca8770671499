"""ReplayOutcome: what a replay saw, and its file `replay.json` with a versioned schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hicache.testing.replay.latency import Latency
from hicache.testing.replay.timeline import Window

SCHEMA_VERSION = 1
"""Goes up when a field of `replay.json` is added, removed or changes its meaning."""


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """One replay. Rates are shares of `input_tokens`, from 0 to 1.

    `too_large`: requests passed over because they do not fit an empty cache. `skipped_lines`: malformed lines.
    `optimal_hit_rate`: Belady's optimum for the same capacity; `lru_hit_rate`: a block-level LRU that shares no code
    with the cache. `evicted_tokens`: of FULL, or None when the adapter has no size counters. `latency`: by verb.
    `checks`: audits of the whole cache. `broken`: the message of the law that ended the replay, or None.
    """

    schema_version: int
    trace: str
    adapter: str
    configuration: str
    capacity_tokens: Mapping[str, int]
    footprint_tokens: int
    running: int
    requests: int
    too_large: int
    skipped_lines: int
    input_tokens: int
    hit_tokens: Mapping[str, int]
    hit_rate: float
    lru_hit_rate: float
    optimal_hit_rate: float
    evicted_tokens: int | None
    latency: Mapping[str, Latency]
    checks: int
    broken: str | None
    seconds: float
    peak_rss_bytes: int
    timeline: tuple[Window, ...]


def write_outcome(outcome: ReplayOutcome, path: Path) -> None:
    """Write the outcome as JSON, in ASCII, so that any message survives."""
    path.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="ascii")
