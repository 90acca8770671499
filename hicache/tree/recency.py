"""EvictionQueue: the candidates of one component in eviction order, as a heap that is mended when it is read."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from hicache.metrics import Counters
from hicache.tree.node import Node
from hicache.tree.policies import Order

COMPACT_FROM = 64
"""Heap entries below which outdated ones are not worth clearing out."""


class EvictionQueue:
    """Nodes that one component may evict from one tier.

    Use moves a node back without touching the heap: its entry is found outdated when it comes up, and goes back to
    its new place. So a match costs nothing here, and an eviction does not depend on the size of the tree.
    """

    def __init__(
        self, place: int, order: Order, is_candidate: Callable[[Node], bool], renew: bool, counters: Counters
    ) -> None:
        self._place = place
        self._order = order
        self._is_candidate = is_candidate
        self._renew = renew
        self._counters = counters
        self._heap: list[tuple[Any, int, Node]] = []
        self._serial = 0
        self._queued = 0

    def offer(self, node: Node) -> None:
        """A node may have become a candidate."""
        if node.queued[self._place] is None and self._is_candidate(node):
            self._push(node)

    def touched(self, node: Node) -> None:
        """A node was used. Matters only where use brings it nearer to eviction."""
        if self._renew:
            self.moved(node)

    def moved(self, node: Node) -> None:
        """A node comes earlier in the order than it did."""
        if node.queued[self._place] is not None:
            self._queued -= 1
            self._push(node)

    def withdraw(self, node: Node) -> None:
        """A node left the tree, or lost what this component had there."""
        if node.queued[self._place] is not None:
            node.queued[self._place] = None
            self._queued -= 1
            self._compact_when_sparse()

    def pop(self) -> Node | None:
        """The next victim, which is a candidate at this moment, or None."""
        while self._heap:
            order, serial, node = heapq.heappop(self._heap)
            self._counters.candidates_popped += 1
            if node.queued[self._place] != serial:
                continue
            node.queued[self._place] = None
            self._queued -= 1
            if not self._is_candidate(node):
                continue
            if order == self._order(node):
                return node
            self._push(node)
        return None

    def __len__(self) -> int:
        """Entries in the heap, outdated ones included."""
        return len(self._heap)

    def _push(self, node: Node) -> None:
        self._serial += 1
        self._queued += 1
        node.queued[self._place] = self._serial
        heapq.heappush(self._heap, (self._order(node), self._serial, node))
        self._compact_when_sparse()

    def _compact_when_sparse(self) -> None:
        if len(self._heap) <= COMPACT_FROM + 2 * self._queued:
            return
        self._heap = [entry for entry in self._heap if entry[2].queued[self._place] == entry[1]]
        heapq.heapify(self._heap)
