"""LoadTickets: the loads that a machine waits for, and whether each of them may fail."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.types import Handle, Key, Slots


@dataclass(slots=True, eq=False)
class ExpectedLoad:
    """A load that was granted.

    `ticket`: of the cache. `node`: the handle that was loaded. `key`: the prefix that the load delivers.
    `indices`: the promised slots. `may_fail`: a transfer was made to fail that the load may depend on.
    """

    ticket: Handle
    node: Handle
    key: Key
    indices: Slots
    may_fail: bool


class LoadTickets:
    """Every ticket is claimed or abandoned once. After that, and after a reset, it is refused.

    `waiting`: the tickets that were neither claimed nor abandoned.
    """

    def __init__(self) -> None:
        self.waiting: list[ExpectedLoad] = []
        self._has_failure = False

    def granted(self, ticket: Handle, node: Handle, key: Key, indices: Slots) -> None:
        """A load was granted. It may share transfers with other loads, and so their failures."""
        self.waiting.append(ExpectedLoad(ticket, node, key, indices, may_fail=self._has_failure))

    def failed(self) -> None:
        """A load transfer was made to fail. Which loads depend on it cannot be seen from outside."""
        self._has_failure = True
        for ticket in self.waiting:
            ticket.may_fail = True

    def observe(self, are_loads_under_way: bool) -> None:
        """Once no load is under way, later loads depend on no earlier failure."""
        self._has_failure &= are_loads_under_way
