"""Holding: what one component holds on one tier, and the bookkeeping of its pages, sizes and locks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hicache.metrics import Counters
from hicache.tree.node import Node
from hicache.tree.recency import EvictionQueue
from hicache.types import EventKind, Sizes, Slots

FULL = 0
"""FULL's place among the components of a node, and on the device. The others follow in rank order."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What differs from component to component and from tier to tier.

    `capacity_pages`: of the pool, whose pages are 1 to this number. `freed_by`: what `give_back` gets for a node that
    lets go. `report`: tells the event log what a node got or lost.
    """

    capacity_pages: int
    freed_by: Callable[[Node], Slots]
    give_back: Callable[[Slots], None]
    report: Callable[[EventKind, Node], None]


class Holding:
    """The pages that nodes hold at one place: `node.values[place]`, int64, or None.

    `tier`: 0 for the device, 1 for the host. `leads`: FULL's, whose holders the parents count.
    """

    def __init__(
        self, name: str, tier: int, place: int, *, leads: bool, ways: Ways, queue: EvictionQueue, counters: Counters
    ) -> None:
        self.name = name
        self.tier = tier
        self.place = place
        self.queue = queue
        self.evictable_pages = 0
        self.protected_pages = 0
        self.dropped_pages = 0
        self._leads = leads
        self._ways = ways
        self._counters = counters
        self._dropped: list[Slots] = []
        # Both ends are nobody's, so that a foreign page, clipped to the range, is not owned.
        self._is_owned = np.zeros(ways.capacity_pages + 2, dtype=np.bool_)

    def hold(self, node: Node, pages: Slots) -> None:
        """The node, unlocked here, has these pages from now on. What its queue sorts by is set before."""
        if node.locks[self.place] or node.values[self.place] is not None:
            raise ValueError(f"{self.name}: {node!r} cannot take pages")
        node.values[self.place] = pages
        self._is_owned[pages] = True
        self.evictable_pages += len(pages)
        if self._leads:
            self._count_at_parent(node, 1)
        self._ways.report(EventKind.STORED, node)
        self.queue.offer(node)

    def drop(self, node: Node) -> None:
        """The node, unlocked here, holds nothing any more. The pages are freed by the next `flush`."""
        pages = node.values[self.place]
        if pages is None:
            return
        if node.locks[self.place]:
            raise ValueError(f"{self.name}: {node!r} is locked and cannot be dropped")
        self._ways.report(EventKind.REMOVED, node)
        self._dropped.append(self._ways.freed_by(node))
        self.dropped_pages += len(pages)
        self.evictable_pages -= len(pages)
        self._is_owned[pages] = False
        node.values[self.place] = None
        self.queue.withdraw(node)
        if self._leads:
            self._count_at_parent(node, -1)

    def reserve(self, pages: Slots) -> None:
        """Pages on their way to nodes are refused to callers as the tree's are."""
        self._is_owned[pages] = True

    def unreserve(self, pages: Slots) -> None:
        """They are free again, or on their way no more."""
        self._is_owned[pages] = False

    def owns(self, pages: Slots) -> bool:
        """Whether a node holds one of these pages."""
        return bool(np.count_nonzero(self._is_owned.take(pages, mode="clip")))

    def forget(self, node: Node) -> None:
        """Drop the node's data whatever locks it, and the locks with it."""
        if node.locks[self.place]:
            node.locks[self.place] = 0
            self._move_size(node, -1)
        self.drop(node)

    def discard(self, pages: Slots) -> None:
        """Free pages that no node takes, with the next flush."""
        if len(pages):
            self._dropped.append(pages)

    def sizes(self, unit: int, free_pages: int) -> Sizes:
        """The size counters, in slots. `unit`: slots per page."""
        return Sizes(self.evictable_pages * unit, self.protected_pages * unit, free_pages * unit)

    def flush(self) -> None:
        """Free all that was dropped, in one go."""
        if self._dropped:
            dropped, self._dropped, self.dropped_pages = self._dropped, [], 0
            self._ways.give_back(np.concatenate(dropped))

    def pin(self, node: Node) -> bool:
        """Count one more lock; True when it is the first."""
        self._counters.nodes_locked += 1
        node.locks[self.place] += 1
        if node.locks[self.place] > 1:
            return False
        self._move_size(node, 1)
        return True

    def unpin(self, node: Node) -> bool:
        """Count one lock less; True when it was the last."""
        if node.locks[self.place] < 1:
            raise ValueError(f"{self.name}: {node!r} is not locked")
        self._counters.nodes_locked += 1
        node.locks[self.place] -= 1
        if node.locks[self.place]:
            return False
        self._move_size(node, -1)
        self.queue.offer(node)
        return True

    def divide(self, upper: Node, lower: Node) -> None:
        """Share the pages of a cut node between its parts, each with its own array."""
        upper.arriving[self.place] = lower.arriving[self.place]
        pages = lower.values[self.place]
        if pages is None:
            return
        upper.values[self.place] = pages[: upper.pages].copy()
        lower.values[self.place] = pages[upper.pages :].copy()
        if self._leads:
            upper.holders[self.tier] = 1

    def _count_at_parent(self, node: Node, by: int) -> None:
        parent = node.parent
        assert parent is not None, f"{self.name}: the root holds nothing"
        parent.holders[self.tier] += by
        self.queue.offer(parent)

    def _move_size(self, node: Node, sign: int) -> None:
        pages = node.values[self.place]
        if pages is not None:
            self.protected_pages += sign * len(pages)
            self.evictable_pages -= sign * len(pages)
