"""StorageOutcome: the result of a replay for its storage tier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from hicache.config import StorageConfig
from hicache.testing.replay.lru import lru_hit_tokens
from hicache.testing.replay.part import Part, share
from hicache.testing.replay.survey import Survey
from hicache.testing.traces import Trace


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
    parts: tuple[Part, ...]

    def total(self, counter: str) -> int | None:
        """A count over all parts; None when the cache does not count it."""
        counts = [part.counters[counter] for part in self.parts if counter in part.counters]
        return sum(counts) if counts else None


def storage_outcome(
    config: StorageConfig, trace: Trace, totals: Survey, page_size: int, parts: Sequence[Part], *, restarted: bool
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
