"""Call: one collective as a rank makes it, and what is wrong where ranks do not all make the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hicache.errors import RankError


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. `operation`: MIN, MAX, broadcast, barrier, or another word. `count`: how many numbers."""

    operation: str
    purpose: str
    count: int

    def __str__(self) -> str:
        return f"{self.operation} {self.purpose}"


GATHER = "gather"
"""The operation of a rank that stands between two collectives, to tell the others something."""


@dataclass(frozen=True, slots=True)
class Attendance:
    """Who came to a call of a group, by the number of the call, which is 1 for the first.

    `came`: what each rank came with. `left`: what became of the ranks that will not come any more, in words.
    """

    group: str
    size: int
    number: int
    timeout_s: float
    came: Mapping[int, Call]
    left: Mapping[int, str]

    def fault(self) -> RankError | None:
        """The error that names each rank that goes another way than most, or than the first; None when all agree."""
        by_rank = [self.came[rank] for rank in sorted(self.came)]
        # Who tells something while another one is in a collective has left that out.
        collectives = [call for call in by_rank if call.operation != GATHER]
        usual = Counter(collectives or by_rank).most_common(1)[0][0]
        told = dict(self._told(usual))
        return RankError("; ".join(told.values()), self.group, tuple(told)) if told else None

    def _told(self, usual: Call) -> Iterator[tuple[int, str]]:
        call = f"call {self.number} ({usual})"
        for rank in range(self.size):
            who, found = f"rank {rank} of {self.group}", self.came.get(rank)
            if found is None and rank in self.left:
                yield rank, f"{who} skipped {call}: it {self.left[rank]}"
            elif found is None:
                yield rank, f"{who} did not come to {call} within {self.timeout_s:g} s"
            elif found.purpose != usual.purpose:
                yield rank, f"{who} skipped {call}: it came with {found}"
            elif found.operation != usual.operation:
                yield rank, f"{who} makes {call} as {found}"
            elif found.count != usual.count:
                first = next(other for other, one in self.came.items() if one == usual)
                yield rank, f"{who} gives {found.count} numbers to {call}, rank {first} gives {usual.count}"
