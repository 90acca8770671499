"""The latency of each verb, in histograms with logarithmic bins: memory does not grow with the number of calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_BINS_PER_OCTAVE = 16
_OCTAVES = 48


@dataclass(frozen=True, slots=True)
class Latency:
    """Percentiles of one verb's calls, in microseconds, each at most 4.5 % above the true one; the maximum is exact."""

    calls: int
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


class LatencyHistogram:
    """Counts of durations, 16 bins per doubling, from 1 ns to 78 hours."""

    def __init__(self) -> None:
        self._counts = [0] * (_BINS_PER_OCTAVE * _OCTAVES)
        self._calls = 0
        self._longest_ns = 0

    def add(self, duration_ns: int) -> None:
        """Count one call."""
        index = int(math.log2(duration_ns) * _BINS_PER_OCTAVE) if duration_ns > 1 else 0
        self._counts[min(index, len(self._counts) - 1)] += 1
        self._calls += 1
        self._longest_ns = max(self._longest_ns, duration_ns)

    def percentile_ns(self, share: float) -> float:
        """The upper edge of the bin in which this share of the calls is reached; at most the longest call."""
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= share * self._calls:
                return min(math.pow(2.0, (index + 1) / _BINS_PER_OCTAVE), float(self._longest_ns))
        return 0.0

    def summary(self) -> Latency:
        """The percentiles to report."""
        p50, p90, p99 = (round(self.percentile_ns(share) / 1e3, 3) for share in (0.5, 0.9, 0.99))
        return Latency(calls=self._calls, p50_us=p50, p90_us=p90, p99_us=p99, max_us=self._longest_ns / 1e3)


class Stopwatch:
    """Calls verbs and records their durations, in one histogram for each verb."""

    def __init__(self) -> None:
        self._histograms: dict[str, LatencyHistogram] = {}

    def time(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a bound method and count its duration under its name. A call that raises is not counted."""
        begin = perf_counter_ns()
        result = verb(*args, **kwargs)
        self._histograms.setdefault(verb.__name__, LatencyHistogram()).add(perf_counter_ns() - begin)
        return result

    def summaries(self) -> dict[str, Latency]:
        """Latency by verb, in the order of first use."""
        return {verb: histogram.summary() for verb, histogram in self._histograms.items()}
