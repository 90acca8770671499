"""Paired answers: whether a pass lost right answers, the rate of false alarms, and the smallest loss that is seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb

ALPHA = 1e-3
"""The most often that `is_loss` holds where answers differ by chance."""

MIN_DROP = 0.2
"""The least fall of a score for `falls`."""


@dataclass(frozen=True, slots=True)
class PairedAnswers:
    """Answers to the same questions in two passes. `lost`: right in the first alone. `gained`: in the later alone."""

    questions: int
    lost: int
    gained: int

    @classmethod
    def of(cls, first: Sequence[bool], later: Sequence[bool]) -> PairedAnswers:
        """Compare which answers were right. Raises ValueError for passes with other numbers of answers."""
        pairs = list(zip(first, later, strict=True))
        return cls(len(pairs), pairs.count((True, False)), pairs.count((False, True)))

    @property
    def differing(self) -> int:
        """How many answers are right in one of the passes alone."""
        return self.lost + self.gained


Gate = Callable[[PairedAnswers], bool]
"""Whether answers were lost."""


def is_loss(paired: PairedAnswers) -> bool:
    """The exact test of McNemar, one-sided: so many lost answers have a chance of ALPHA at most if none was damaged."""
    at_least = sum(comb(paired.differing, lost) for lost in range(paired.lost, paired.differing + 1))
    return at_least <= ALPHA * (1 << paired.differing)


def falls(paired: PairedAnswers) -> bool:
    """Whether the score falls by MIN_DROP at least."""
    return paired.lost - paired.gained >= MIN_DROP * paired.questions


def smallest_loss(gate: Gate, questions: int) -> int | None:
    """The fewest lost answers, with none gained, that a gate sees; None if it sees none of so few questions."""
    seen = (lost for lost in range(1, questions + 1) if gate(PairedAnswers(questions, lost, 0)))
    return next(seen, None)


def false_alarms(gate: Gate, questions: int) -> float:
    """The highest rate of alarms without a loss: any number of answers differ, each lost or gained with one half."""
    return max(_alarms(gate, questions, differing) for differing in range(questions + 1))


def _alarms(gate: Gate, questions: int, differing: int) -> float:
    alarming = (lost for lost in range(differing + 1) if gate(PairedAnswers(questions, lost, differing - lost)))
    return sum(comb(differing, lost) for lost in alarming) / (1 << differing)
