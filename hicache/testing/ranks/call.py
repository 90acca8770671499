"""Call: one collective as a rank makes it; GroupCall: the calls of all ranks, and the error when they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hicache.errors import RankError


@dataclass(frozen=True, slots=True)
class Call:
    """One collective. `operation`: MIN, MAX, broadcast, barrier, or another name. `count`: the number of values."""

    operation: str
    purpose: str
    count: int

    def __str__(self) -> str:
        return f"{self.operation} {self.purpose}"


GATHER = "gather"
"""The operation of an exchange over the side channel, outside of the collectives."""


@dataclass(frozen=True, slots=True)
class GroupCall:
    """One call of a group as its ranks make it. `number`: of the call, 1 for the first.

    `came`: the call of each rank that reached it. `left`: why other ranks make no more calls, in words.
    """

    group: str
    size: int
    number: int
    timeout_s: float
    came: Mapping[int, Call]
    left: Mapping[int, str]

    def error(self) -> RankError | None:
        """The error that names each rank whose call differs from the most frequent one; None when all agree."""
        by_rank = [self.came[rank] for rank in sorted(self.came)]
        # A rank that gathers while another rank is in a collective has skipped that collective.
        collectives = [call for call in by_rank if call.operation != GATHER]
        usual = Counter(collectives or by_rank).most_common(1)[0][0]
        messages = dict(self._differences(usual))
        return RankError("; ".join(messages.values()), self.group, tuple(messages)) if messages else None

    def _differences(self, usual: Call) -> Iterator[tuple[int, str]]:
        call = f"call {self.number} ({usual})"
        for rank in range(self.size):
            who, found = f"rank {rank} of {self.group}", self.came.get(rank)
            if found is None and rank in self.left:
                yield rank, f"{who} skipped {call}: it {self.left[rank]}"
            elif found is None:
                yield rank, f"{who} did not reach {call} within {self.timeout_s:g} s"
            elif found.purpose != usual.purpose:
                yield rank, f"{who} skipped {call}: it called {found} instead"
            elif found.operation != usual.operation:
                yield rank, f"{who} made {call} as {found}"
            elif found.count != usual.count:
                first = next(other for other, one in self.came.items() if one == usual)
                yield rank, f"{who} passed {found.count} values to {call}, rank {first} passed {usual.count}"
