"""RecordedGroup: a group whose calls are recorded, and compared over a side channel before any rank enters one.

So a rank that skips a call is named at once, where the collectives themselves would hang.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache.parallel.group import Group, Reduction
from hicache.testing.ranks.call import Call
from hicache.testing.ranks.compared_calls import ComparedCalls


class RecordedGroup:
    """Passes each call on when all ranks have come to it with the same; otherwise RankError, on every rank."""

    def __init__(self, inner: Group, compared_calls: ComparedCalls) -> None:
        self._inner = inner
        self._compared_calls = compared_calls

    @property
    def name(self) -> str:
        """As Group says."""
        return self._inner.name

    @property
    def rank(self) -> int:
        """As Group says."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """As Group says."""
        return self._inner.size

    @property
    def calls(self) -> Sequence[Call]:
        """All calls of this rank so far."""
        return self._compared_calls.calls

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        """As Group says."""
        self._compared_calls.answer(Call(reduction.value, purpose, len(values)), "")
        return self._inner.reduce(values, reduction, purpose)

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        """As Group says."""
        self._compared_calls.answer(Call("broadcast", purpose, len(values)), "")
        return self._inner.broadcast(values, purpose)

    def barrier(self, purpose: str) -> None:
        """As Group says."""
        self._compared_calls.answer(Call("barrier", purpose, 0), "")
        self._inner.barrier(purpose)

    def leave(self, how: str) -> None:
        """Say that this rank will make no more calls."""
        self._compared_calls.leave(how)
