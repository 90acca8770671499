"""Tally: the running totals of a replay."""

from __future__ import annotations

from collections import Counter

from hicache.testing.replay.session import Served
from hicache.testing.replay.timeline import Timeline, Window
from hicache.testing.traces import TraceRequest


class Tally:
    """Totals in tokens. `evicted_tokens`: what the tree gained and has no more; None when its size is not known."""

    def __init__(self) -> None:
        self.requests = 0
        self.too_large = 0
        self.input_tokens = 0
        self.hit_tokens: Counter[str] = Counter()
        self.evicted_tokens: int | None = None
        self.timeline = Timeline()
        self._inserted_tokens = 0

    def add(self, request: TraceRequest, served: Served | None, tree_tokens: int | None) -> None:
        """Count one request; `served` is None when it was too large. `tree_tokens`: what the tree holds now."""
        self.requests += 1
        self.input_tokens += request.input_length
        if served is None:
            self.too_large += 1
        else:
            self.hit_tokens.update(served.hit_tokens)
            self._inserted_tokens += served.inserted_tokens
        self.evicted_tokens = None if tree_tokens is None else self._inserted_tokens - tree_tokens
        window = Window(
            arrival_ms=request.timestamp_ms,
            requests=1,
            input_tokens=request.input_length,
            hit_tokens=0 if served is None else sum(served.hit_tokens.values()),
            occupied_tokens=tree_tokens,
            evicted_tokens=self.evicted_tokens,
        )
        self.timeline.add(window)
