"""The course of a replay over the time of its trace, in a bounded number of windows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MAX_WINDOWS = 80


@dataclass(slots=True)
class Window:
    """Sums over consecutive requests, and the state after them, in tokens.

    `hit_tokens`: by tier. `occupied_tokens`: of FULL, by tier, for the tiers with size counters.
    `evicted_tokens`: from the device so far, or None.
    """

    arrival_ms: int
    requests: int
    input_tokens: int
    hit_tokens: Mapping[str, int]
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
        occupied_tokens=later.occupied_tokens,
        evicted_tokens=later.evicted_tokens,
    )
