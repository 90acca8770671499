"""Tally: the running totals of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.testing.replay.session import Served
from hicache.testing.replay.timeline import Timeline, Window
from hicache.testing.traces import TraceRequest
from hicache.types import Tier


class Tally:
    """Totals in tokens, hits by tier.

    `hit_lengths`: by tier, the hits of each request. `evicted_tokens`: the tokens that the tree gained on the device
    and no longer has there; None when the tree's size is unknown.
    """

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.requests = 0
        self.too_large = 0
        self.input_tokens = 0
        self.hit_lengths: dict[str, list[int]] = {tier.value: [] for tier in tiers}
        self.evicted_tokens: int | None = None
        self.timeline = Timeline()
        self._gained_tokens = 0

    @property
    def hit_tokens(self) -> dict[str, int]:
        """The hits of all requests, by tier."""
        return {tier: sum(lengths) for tier, lengths in self.hit_lengths.items()}

    def start_epoch(self) -> None:
        """Start with a new, empty cache: the tokens in the closed cache do not count as evicted."""
        self._gained_tokens = self.evicted_tokens or 0

    def add(self, request: TraceRequest, served: Served, occupied_tokens: Mapping[str, int]) -> None:
        """Count one request. `occupied_tokens`: the tokens in the tree now, by tier."""
        self.requests += 1
        self.input_tokens += request.input_length
        self.too_large += not served.fits
        self._gained_tokens += served.gained_tokens
        hits = {tier: served.hit_tokens.get(tier, 0) for tier in self.hit_lengths}
        for tier, tokens in hits.items():
            self.hit_lengths[tier].append(tokens)
        held = occupied_tokens.get(Tier.DEVICE)
        self.evicted_tokens = None if held is None else self._gained_tokens - held
        window = Window(
            arrival_ms=request.timestamp_ms,
            requests=1,
            input_tokens=request.input_length,
            hit_tokens=hits,
            occupied_tokens=occupied_tokens,
            evicted_tokens=self.evicted_tokens,
        )
        self.timeline.add(window)
