"""RecordedGroup: records the calls of a group, and compares them over a side channel before any rank enters one.

Thus a rank that skips a call is named at once, where the collective itself would hang.
"""

from __future__ import annotations

from collections.abc import Sequence

from hicache.parallel.group import Group, Reduction
from hicache.testing.ranks.call import Call
from hicache.testing.ranks.compared_calls import ComparedCalls


class RecordedGroup:
    """Passes each call on when all ranks make the same one; otherwise raises RankError on every rank."""

    def __init__(self, inner: Group, compared_calls: ComparedCalls) -> None:
        self._inner = inner
        self._compared_calls = compared_calls

    @property
    def name(self) -> str:
        """See Group."""
        return self._inner.name

    @property
    def rank(self) -> int:
        """See Group."""
        return self._inner.rank

    @property
    def size(self) -> int:
        """See Group."""
        return self._inner.size

    @property
    def calls(self) -> Sequence[Call]:
        """All calls of this rank so far."""
        return self._compared_calls.calls

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        """See Group."""
        self._compared_calls.compare(Call(reduction.value, purpose, len(values)), "")
        return self._inner.reduce(values, reduction, purpose)

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        """See Group."""
        self._compared_calls.compare(Call("broadcast", purpose, len(values)), "")
        return self._inner.broadcast(values, purpose)

    def barrier(self, purpose: str) -> None:
        """See Group."""
        self._compared_calls.compare(Call("barrier", purpose, 0), "")
        self._inner.barrier(purpose)

    def leave(self, how: str) -> None:
        """Record that this rank makes no more calls."""
        self._compared_calls.leave(how)
