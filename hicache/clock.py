"""Clock: the time that a cache goes by: the machine's own, or one that a test moves."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time in seconds since some moment."""

    def now(self) -> float:
        """Seconds; never less than before."""


class WallClock:
    """The machine's own time."""

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """Time stands still until it is moved."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for less than nothing."""
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds
