"""Turns: the same work done in two ways by turns, so that whatever slows the machine slows both, and their ratio."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import process_time_ns
from typing import Any


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as long one way takes as the other.

    `pairs`: turns that were measured. `of_minima`: of the shortest time of each way. `median`: of the ratios by pair.
    """

    pairs: int
    of_minima: float
    median: float

    @classmethod
    def of(cls, numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
        """The ratio of times that were measured by turns, in one unit."""
        by_pair = [one / other for one, other in zip(numerators, denominators, strict=True)]
        return cls(len(by_pair), min(numerators) / min(denominators), median(by_pair))


class Turns:
    """The CPU time that each verb took for one batch, turn by turn. Time that other processes take is not counted."""

    def __init__(self) -> None:
        self._taken_us: dict[str, list[float]] = {}

    def take(self, verb: str, call: Callable[[Any], object], arguments: Iterable[Any]) -> None:
        """Call a verb once with each argument, and time the batch."""
        begin = process_time_ns()
        for argument in arguments:
            call(argument)
        self._taken_us.setdefault(verb, []).append((process_time_ns() - begin) / 1000)

    def ratio(self, numerator: str, denominator: str) -> Ratio:
        """How many times as long one verb took as the other."""
        return Ratio.of(self._taken_us[numerator], self._taken_us[denominator])
