"""Clock: the time that a cache uses: the machine's own, or one that a test moves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since some moment."""

    def now(self) -> float:
        """Seconds; never less than before."""


class WallClock:
    """The machine's monotonic time."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds
