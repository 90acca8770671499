"""TicketBook: the loads that a machine waits for, and whether each has to come to a good end."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.types import Handle, Key, Slots


@dataclass(slots=True, eq=False)
class Ticket:
    """A load that was granted.

    `ticket`: the cache's own. `node`: the handle that it was asked for with. `key`: the prefix that it delivers.
    `indices`: the slots that it promised. `may_fail`: a transfer that it may depend on was made to fail.
    """

    ticket: Handle
    node: Handle
    key: Key
    indices: Slots
    may_fail: bool


class TicketBook:
    """Every ticket is claimed or abandoned once, and refused from then on, as is every one of an earlier life.

    `waiting`: those that were neither claimed nor abandoned. `refused`: calls that the cache must refuse.
    """

    def __init__(self) -> None:
        self.waiting: list[Ticket] = []
        self._has_failure = False

    def granted(self, ticket: Handle, node: Handle, key: Key, indices: Slots) -> None:
        """A load began. It may share what another one brings, and what was made to fail of that."""
        self.waiting.append(Ticket(ticket, node, key, indices, may_fail=self._has_failure))

    def failed(self) -> None:
        """Some load under way was made to fail; whose it is cannot be seen from outside."""
        self._has_failure = True
        for ticket in self.waiting:
            ticket.may_fail = True

    def looked(self, are_loads_under_way: bool) -> None:
        """Once nothing is under way, loads that begin depend on no failure."""
        self._has_failure &= are_loads_under_way
