"""ReplayOutcome: the result of a replay, and its file `replay.json` with a versioned schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hicache.testing.replay.latency import Latency
from hicache.testing.replay.storage_outcome import StorageOutcome
from hicache.testing.replay.timeline import Window

SCHEMA_VERSION = 4
"""Incremented when a field of `replay.json` is added, removed or changes its meaning.

1: the device alone. 2: `host`, `hit_rates`, `device_lru_hit_rate`; a window's hits and occupancy are by tier.
3: `storage`; a third tier in `hit_tokens` and `hit_rates`. 4: `hit_lengths`.
"""


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """The host tier of a replay.

    `bytes_backed_up`, `bytes_loaded`: over all layers and pools of the replay's small model; `backups_refused`: for
    lack of host space; all as the cache counts them, or None without COUNTERS. `bytes_per_token`: the bytes of one
    token in the pools that have FULL's slots, or None when the pools cannot be read.
    """

    capacity_tokens: Mapping[str, int]
    bytes_backed_up: int | None
    bytes_loaded: int | None
    backups_refused: int | None
    bytes_per_token: int | None


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """One replay. Rates are shares of `input_tokens`, from 0 to 1.

    `capacity_tokens`: of the device, by component. `hit_tokens`, `hit_rates`: by tier; tokens that are loaded back for
    a request are hits of the host, or of storage if they were prefetched for this request. `hit_lengths`: the hits of
    each request by tier, in the order of the trace, to compare caches. `too_large`: requests that were skipped because
    they do not fit an empty cache. `skipped_lines`: malformed lines. `optimal_hit_rate`: Belady's optimum for the
    capacity of device and host together.
    `lru_hit_rate`: a block-level LRU of that capacity, which shares no code with the cache; `device_lru_hit_rate`: one
    of the device's capacity. `evicted_tokens`: of FULL from the device, or None when the adapter has no size counters.
    `latency`: by verb. `checks`: audits of the whole cache. `broken`: the message of the violated law that ended the
    replay, or None. `host`, `storage`: None without that tier.
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
    hit_rates: Mapping[str, float]
    hit_lengths: Mapping[str, Sequence[int]]
    lru_hit_rate: float
    device_lru_hit_rate: float
    optimal_hit_rate: float
    evicted_tokens: int | None
    latency: Mapping[str, Latency]
    checks: int
    broken: str | None
    seconds: float
    peak_rss_bytes: int
    timeline: tuple[Window, ...]
    host: HostOutcome | None
    storage: StorageOutcome | None


def write_outcome(outcome: ReplayOutcome, path: Path) -> None:
    """Write the outcome as JSON in ASCII, so that any message can be written."""
    path.write_text(json.dumps(asdict(outcome), indent=1) + "\n", encoding="ascii")
