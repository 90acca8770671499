"""Tally: the running totals of a replay, its course in a bounded number of windows, and its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hicache.testing.replay.limits import Seen
from hicache.testing.replay.session import Served
from hicache.testing.traces import TraceRequest
from hicache.types import Sizes, Tier

_MAX_WINDOWS = 80


class ReplayTally:
    """Totals in tokens, hits by tier.

    `hit_lengths`: by tier, the hits of each request. `refused_tokens`: by component; empty for a cache that does not
    say it. `lost_tokens`: what an earlier request computed, and was neither hit nor refused. `evicted_tokens`: the
    tokens that the tree gained on the device and no longer has there; None when the tree's size or what it gained is
    unknown. `pinned_tokens`: as in ReplayOutcome.
    """

    def __init__(self, tiers: Sequence[Tier], page_size: int) -> None:
        self.requests = 0
        self.too_large = 0
        self.input_tokens = 0
        self.hit_lengths: dict[str, list[int]] = {tier.value: [] for tier in tiers}
        self.refused_tokens: Counter[str] = Counter()
        self.lost_tokens = 0
        self.evicted_tokens: int | None = None
        self.pinned_tokens: dict[str, int] = {}
        self.timeline = Timeline()
        self._gained_tokens = 0
        self._seen = Seen(page_size)

    @property
    def hit_tokens(self) -> dict[str, int]:
        """The hits of all requests, by tier."""
        return {tier: sum(lengths) for tier, lengths in self.hit_lengths.items()}

    def note_pinned(self, sizes: Mapping[str, Sizes]) -> None:
        """The sizes on the device now, by component: what is locked counts if it is more than ever before."""
        for name, one in sizes.items():
            self.pinned_tokens[name] = max(one.protected, self.pinned_tokens.get(name, 0))

    def start_epoch(self) -> None:
        """Start with a new, empty cache: the tokens in the closed cache do not count as evicted."""
        self._gained_tokens = self.evicted_tokens or 0

    def add(self, request: TraceRequest, served: Served, occupied_tokens: Mapping[str, int]) -> None:
        """Count one request. `occupied_tokens`: the tokens in the tree now, by tier."""
        self.requests += 1
        self.input_tokens += request.input_length
        self.too_large += not served.fits
        self._gained_tokens += served.gained_tokens or 0
        hits = {tier: served.hit_tokens.get(tier, 0) for tier in self.hit_lengths}
        for tier, tokens in hits.items():
            self.hit_lengths[tier].append(tokens)
        refused = served.refused_tokens or {}
        # What does not fit is not computed.
        seen = self._seen.add(request) if served.fits else 0
        lost = max(0, seen - sum(hits.values()) - sum(refused.values()))
        self.refused_tokens.update(refused)
        self.lost_tokens += lost
        held = occupied_tokens.get(Tier.DEVICE)
        self.evicted_tokens = None if held is None or served.gained_tokens is None else self._gained_tokens - held
        window = Window(
            arrival_ms=request.timestamp_ms,
            requests=1,
            input_tokens=request.input_length,
            hit_tokens=hits,
            refused_tokens=refused,
            lost_tokens=lost,
            occupied_tokens=occupied_tokens,
            evicted_tokens=self.evicted_tokens,
        )
        self.timeline.add(window)


@dataclass(slots=True)
class Window:
    """Sums over consecutive requests, and the state after them, in tokens.

    `hit_tokens`: by tier. `refused_tokens`, `lost_tokens`: as in ReplayTally. `occupied_tokens`: of FULL, by tier, for
    the tiers with size counters. `evicted_tokens`: from the device so far, or None.
    """

    arrival_ms: int
    requests: int
    input_tokens: int
    hit_tokens: Mapping[str, int]
    refused_tokens: Mapping[str, int]
    lost_tokens: int
    occupied_tokens: Mapping[str, int]
    evicted_tokens: int | None


class Timeline:
    """Windows of equally many requests; pairs of windows are joined when there are too many."""

    def __init__(self) -> None:
        self.windows: list[Window] = []
        self._requests_per_window = 1

    def add(self, moment: Window) -> None:
        """Append the window of one request."""
        if self.windows and self.windows[-1].requests < self._requests_per_window:
            self.windows[-1] = _joined(self.windows[-1], moment)
            return
        if len(self.windows) == _MAX_WINDOWS:
            self.windows = [_joined(*pair) for pair in zip(self.windows[::2], self.windows[1::2], strict=True)]
            self._requests_per_window *= 2
        self.windows.append(moment)


def _joined(earlier: Window, later: Window) -> Window:
    return Window(
        arrival_ms=later.arrival_ms,
        requests=earlier.requests + later.requests,
        input_tokens=earlier.input_tokens + later.input_tokens,
        hit_tokens={tier: tokens + later.hit_tokens[tier] for tier, tokens in earlier.hit_tokens.items()},
        refused_tokens=dict(Counter(earlier.refused_tokens) + Counter(later.refused_tokens)),
        lost_tokens=earlier.lost_tokens + later.lost_tokens,
        occupied_tokens=later.occupied_tokens,
        evicted_tokens=later.evicted_tokens,
    )


@dataclass(frozen=True, slots=True)
class TallyPart:
    """Sums over consecutive requests, in tokens; hits by tier.

    `counters`: as in CacheAdapter.counters, for these requests, and empty for a cache without COUNTERS; and
    `prefetches`,
    `prefetches_refused`, `fetched_tokens`: prefetches started and refused, and the tokens they loaded.
    """

    requests: int
    input_tokens: int
    hit_tokens: Mapping[str, int]
    hit_rates: Mapping[str, float]
    hit_rate: float
    counters: Mapping[str, int]
    seconds: float


def part_since(
    parts: Iterable[TallyPart], tally: ReplayTally, counters: Mapping[str, int], seconds: float
) -> TallyPart:
    """The part after some parts. `tally`, `counters`: over all requests so far."""
    before = list(parts)
    input_tokens = tally.input_tokens - sum(part.input_tokens for part in before)
    hits = {tier: count - sum(part.hit_tokens[tier] for part in before) for tier, count in tally.hit_tokens.items()}
    return TallyPart(
        requests=tally.requests - sum(part.requests for part in before),
        input_tokens=input_tokens,
        hit_tokens=hits,
        hit_rates={tier: share(tokens, input_tokens) for tier, tokens in hits.items()},
        hit_rate=share(sum(hits.values()), input_tokens),
        counters={name: count - sum(part.counters.get(name, 0) for part in before) for name, count in counters.items()},
        seconds=round(seconds, 3),
    )


def share(tokens: int, of: int) -> float:
    """A rate from 0 to 1; 0 when `of` is 0."""
    return tokens / of if of else 0.0
