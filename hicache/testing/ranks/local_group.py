"""LocalGroup: a group whose ranks are threads of one process, so that one test can use a mesh of any size."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hicache.parallel.group import Reduction
from hicache.testing.ranks.call import Call
from hicache.testing.ranks.compared_calls import ComparedCalls


class LocalGroup:
    """One rank's end of a group, whose calls are compared by `compared_calls`.

    Raises RankError on every rank when one skips a call or makes another one.
    """

    def __init__(self, compared_calls: ComparedCalls) -> None:
        self.compared_calls = compared_calls

    @property
    def name(self) -> str:
        """See Group."""
        return self.compared_calls.channel.name

    @property
    def rank(self) -> int:
        """See Group."""
        return self.compared_calls.rank

    @property
    def size(self) -> int:
        """See Group."""
        return self.compared_calls.channel.size

    @property
    def calls(self) -> Sequence[Call]:
        """All calls of this rank so far."""
        return self.compared_calls.calls

    def reduce(self, values: Sequence[int], reduction: Reduction, purpose: str) -> list[int]:
        """See Group."""
        fold = min if reduction is Reduction.MIN else max
        given = self._exchange(Call(reduction.value, purpose, len(values)), values)
        return [fold(column) for column in zip(*given, strict=True)]

    def broadcast(self, values: Sequence[int], purpose: str) -> list[int]:
        """See Group."""
        return self._exchange(Call("broadcast", purpose, len(values)), values)[0]

    def barrier(self, purpose: str) -> None:
        """See Group."""
        self._exchange(Call("barrier", purpose, 0), ())

    def leave(self, how: str) -> None:
        """Record that this rank makes no more calls."""
        self.compared_calls.leave(how)

    def _exchange(self, call: Call, values: Sequence[int]) -> list[list[int]]:
        texts = self.compared_calls.compare(call, json.dumps([int(value) for value in values]))
        return [json.loads(text) for text in texts]
