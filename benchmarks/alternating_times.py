"""AlternatingTimes: measure two kinds of work alternately, so that a slow machine slows both, and give their ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time_ns
from typing import Any


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long one kind of work takes as the other.

    `pairs`: how many pairs of times were measured. `of_minima`: the ratio of the shortest times. `median`: the median
    of the ratios of all pairs.
    """

    pairs: int
    of_minima: float
    median: float

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        """The ratio of times that were measured alternately, in the same unit."""
        by_pair = [one / other for one, other in zip(numerators, denominators, strict=True)]
        return cls(len(by_pair), min(numerators) / min(denominators), median(by_pair))


class AlternatingTimes:
    """The CPU times of each kind of work, by name. CPU time excludes the time of other processes."""

    def __init__(self) -> None:
        self._taken_us: dict[str, list[float]] = {}

    def measure(self, name: str, call: Callable[[Any], object], arguments: Iterable[Any]) -> None:
        """Call once with each argument, and record the CPU time of all calls together under this name."""
        begin = process_time_ns()
        for argument in arguments:
            call(argument)
        self._taken_us.setdefault(name, []).append((process_time_ns() - begin) / 1000)

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        """The ratio of the times recorded under two names."""
        return Ratio.of(self._taken_us[numerator], self._taken_us[denominator])
