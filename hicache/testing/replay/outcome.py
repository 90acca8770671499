"""ReplayOutcome: the result of a replay, its files `replay.json`, `.svg` and `.html`, and the comparison of two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hicache.config import StorageConfig
from hicache.errors import ConfigurationError
from hicache.testing.replay.latency import Latency
from hicache.testing.replay.limits import Survey, lru_hit_tokens
from hicache.testing.replay.tally import TallyPart, Window, share
from hicache.testing.traces import Trace

SCHEMA_VERSION = 5
"""Incremented when a field of `replay.json` is added, removed or changes its meaning.

1: the device alone. 2: `host`, `hit_rates`, `device_lru_hit_rate`; a window's hits and occupancy are by tier.
3: `storage`; a third tier in `hit_tokens` and `hit_rates`. 4: `hit_lengths`.
5: `refused_tokens`, `lost_tokens`, also of a window; `pinned_tokens`.
"""

ALIKE = ("trace", "footprint_tokens", "capacity_tokens", "running")
"""The fields in which two replays must agree, so that all differences come from the caches."""


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
class StorageOutcome:
    """The storage tier of a replay, in two parts; in fewer when a violated law ended the replay.

    `limit_tokens`: of prefetches in flight. `restarted`: between the parts the cache was closed, and another one opened
    on the same storage; otherwise the parts are the two halves. `middle_ms`: the arrival time at which the second part
    starts, or None. `unbounded_hit_rate`, `unbounded_hit_rates`: the hits of a cache that never loses a page, over the
    whole trace and by part.
    """

    backend: str
    stop_policy: str
    limit_tokens: int
    restarted: bool
    middle_ms: int | None
    unbounded_hit_rate: float
    unbounded_hit_rates: tuple[float, ...]
    parts: tuple[TallyPart, ...]

    def total(self, counter: str) -> int | None:
        """A count over all parts; None when the cache does not count it."""
        counts = [part.counters[counter] for part in self.parts if counter in part.counters]
        return sum(counts) if counts else None


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """One replay. Rates are shares of `input_tokens`, from 0 to 1.

    `capacity_tokens`: of the device, by component. `hit_tokens`, `hit_rates`: by tier; tokens that are loaded back for
    a request are hits of the host, or of storage if they were prefetched for this request. `hit_lengths`: the hits of
    each request by tier, in the order of the trace, to compare caches. `refused_tokens`: as in MatchResult, over all
    requests; None for a cache without MISSES. `lost_tokens`: of the rest, what an earlier request computed; without
    MISSES what was refused too. `too_large`: requests that were skipped because
    they do not fit an empty cache. `skipped_lines`: malformed lines. `optimal_hit_rate`: Belady's optimum for the
    capacity of device and host together.
    `lru_hit_rate`: a block-level LRU of that capacity, which shares no code with the cache; `device_lru_hit_rate`: one
    of the device's capacity. `evicted_tokens`: of FULL from the device, or None when the adapter has no size counters.
    `pinned_tokens`: the most that locks held on the device at a time, by component, for MAMBA in states; empty without
    SIZES. `latency`: by verb. `checks`: audits of the whole cache. `broken`: the message of the violated law that ended
    the replay, or None. `causes`: its clause. `host`, `storage`: None without that tier.
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
    refused_tokens: Mapping[str, int] | None
    lost_tokens: int
    lru_hit_rate: float
    device_lru_hit_rate: float
    optimal_hit_rate: float
    evicted_tokens: int | None
    pinned_tokens: Mapping[str, int]
    latency: Mapping[str, Latency]
    checks: int
    broken: str | None
    causes: tuple[str, ...]
    seconds: float
    peak_rss_bytes: int
    timeline: tuple[Window, ...]
    host: HostOutcome | None
    storage: StorageOutcome | None

    @property
    def lost_name(self) -> str:
        """What became of `lost_tokens`, in words."""
        return "evicted before reuse" if self.refused_tokens is not None else "evicted before reuse, or refused"

    @property
    def unseen_tokens(self) -> int:
        """Prompt tokens that no earlier request computed."""
        refused = sum((self.refused_tokens or {}).values())
        return self.input_tokens - sum(self.hit_tokens.values()) - refused - self.lost_tokens


def storage_outcome(
    config: StorageConfig, trace: Trace, totals: Survey, page_size: int, parts: Sequence[TallyPart], *, restarted: bool
) -> StorageOutcome:
    """The outcome of a trace that was replayed in these parts. Streams it twice more."""
    room = totals.footprint_tokens + page_size
    first = parts[0].requests if parts else 0
    before = lru_hit_tokens(islice(trace, first), page_size, room)
    whole = lru_hit_tokens(trace, page_size, room)
    hits = (before, whole - before)
    return StorageOutcome(
        backend=config.backend,
        stop_policy=config.stop_policy.value,
        limit_tokens=config.limit_tokens,
        restarted=restarted and len(parts) > 1,
        middle_ms=next((request.timestamp_ms for request in islice(trace, first, None)), None),
        unbounded_hit_rate=share(whole, totals.input_tokens),
        unbounded_hit_rates=tuple(share(hit, part.input_tokens) for hit, part in zip(hits, parts, strict=False)),
        parts=tuple(parts),
    )


@dataclass(frozen=True, slots=True)
class Difference:
    """One request, counted from 0, and its hits in tokens by tier in each cache."""

    request: int
    hits: tuple[Mapping[str, int], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class HitComparison:
    """Two replays of one trace. `adapters`: of both caches. `differences`: requests with different hits, in order."""

    adapters: tuple[str, str]
    requests: int
    hit_tokens: tuple[int, int]
    differences: Sequence[Difference]


def compare_hits(first: Path, second: Path) -> HitComparison:
    """Compare two `replay.json`. Raises ConfigurationError naming a file that is not one, or is of another replay."""
    left, right = _read(first), _read(second)
    for name in ALIKE:
        if left[name] != right[name]:
            raise ConfigurationError(f"{second}: {name} is {right[name]!r}, but {left[name]!r} in {first}")
    tiers = tuple(left["hit_lengths"] | right["hit_lengths"])
    hits = [_by_request(one["hit_lengths"], tiers) for one in (left, right)]
    if len(hits[0]) != len(hits[1]):
        raise ConfigurationError(f"{second}: {len(hits[1])} requests were replayed, but {len(hits[0])} in {first}")
    pairs = list(zip(*hits, strict=True))
    return HitComparison(
        adapters=(left["adapter"], right["adapter"]),
        requests=len(pairs),
        hit_tokens=(_total(hits[0]), _total(hits[1])),
        differences=[Difference(number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]],
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a replay: {error}") from error
    missing = [name for name in (*ALIKE, "adapter", "hit_lengths") if not isinstance(table, dict) or name not in table]
    if missing:
        raise ConfigurationError(f"{path}: not a replay of this version: {', '.join(missing)} missing")
    return dict(table)


def _by_request(lengths: Mapping[str, Sequence[int]], tiers: Sequence[str]) -> list[Mapping[str, int]]:
    """The hits of each request, by tier: 0 tokens on a tier that the replay lacks."""
    none = dict.fromkeys(tiers, 0)
    return [none | dict(zip(lengths, row, strict=True)) for row in zip(*lengths.values(), strict=True)]


def _total(hits: Sequence[Mapping[str, int]]) -> int:
    return sum(sum(one.values()) for one in hits)
