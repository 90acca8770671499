"""EvictionQueue: the nodes that one component may evict from one tier, in the order of the eviction policy."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from hicache.config import EvictionPolicy
from hicache.metrics import Counters
from hicache.tree.node import FULL, ComponentData, Node
from hicache.types import Tier

COMPACT_FROM = 64
"""Heap entries below which stale entries are not worth removing."""

SLRU_PROTECTED_HITS = 1
"""The number of hits from which SLRU counts a node as protected: the second request is the first hit."""

Order = Callable[[Node], Any]
"""A sort key; the smallest is evicted first. Compared only with keys of the same policy."""


def _lru(node: Node) -> int:
    return node.last_access_time[FULL]


def _lfu(node: Node) -> tuple[int, int]:
    return node.hit_count, node.last_access_time[FULL]


def _fifo(node: Node) -> int:
    return node.creation_time


def _filo(node: Node) -> int:
    return -node.creation_time


def _mru(node: Node) -> int:
    return -node.last_access_time[FULL]


def _priority(node: Node) -> tuple[int, int]:
    return node.priority, node.last_access_time[FULL]


def _slru(node: Node) -> tuple[bool, int]:
    return node.hit_count >= SLRU_PROTECTED_HITS, node.last_access_time[FULL]


ORDERS: dict[EvictionPolicy, Order] = {
    EvictionPolicy.LRU: _lru,
    EvictionPolicy.LFU: _lfu,
    EvictionPolicy.FIFO: _fifo,
    EvictionPolicy.FILO: _filo,
    EvictionPolicy.MRU: _mru,
    EvictionPolicy.PRIORITY: _priority,
    EvictionPolicy.SLRU: _slru,
}
"""The order of FULL on the device under each policy."""


def use_brings_eviction_nearer(policy: EvictionPolicy) -> bool:
    """Whether a use moves a node forward in the order, so that its queue entry must be renewed at once."""
    return policy is EvictionPolicy.MRU


class EvictionQueue:
    """A heap of candidates that is corrected when it is read.

    A use moves a node back without touching the heap: `pop` finds the entry stale and queues the node again at its
    new position. So a match costs nothing here, and the cost of an eviction does not depend on the size of the tree.
    `renew_on_use`: a use moves a node forward instead, so its entry is replaced at once.
    """

    def __init__(
        self,
        tier: Tier,
        component: int,
        order: Order,
        is_candidate: Callable[[Node], bool],
        renew_on_use: bool,
        counters: Counters,
    ) -> None:
        self._is_host = tier is Tier.HOST
        self._component = component
        self._order = order
        self._is_candidate = is_candidate
        self._renew_on_use = renew_on_use
        self._counters = counters
        # The data beside the node: most entries that are read are stale, which its serial shows.
        self._heap: list[tuple[Any, int, Node, ComponentData]] = []
        self._serial = 0
        self._queued = 0

    def offer(self, node: Node) -> None:
        """Queue the node if it is a candidate and not queued yet."""
        # Every change of a node ends here, so this is `_data` without the call.
        data = (node.host if self._is_host else node.device)[self._component]
        if data.queue_serial is None and self._is_candidate(node):
            self._push(node, data)

    def touch(self, node: Node) -> None:
        """The node was used. Matters only where a use brings it nearer to eviction."""
        if self._renew_on_use:
            self.move_forward(node)

    def move_forward(self, node: Node) -> None:
        """The node comes earlier in the order than before: replace its entry."""
        data = self._data(node)
        if data.queue_serial is not None:
            self._queued -= 1
            self._push(node, data)

    def withdraw(self, node: Node) -> None:
        """The node left the tree, or lost what this component had there."""
        data = self._data(node)
        if data.queue_serial is not None:
            data.queue_serial = None
            self._queued -= 1
            self._compact_when_sparse()

    def pop(self) -> Node | None:
        """The next victim, which is a candidate at this moment, or None."""
        while self._heap:
            order, serial, node, data = heapq.heappop(self._heap)
            self._counters.candidates_popped += 1
            if data.queue_serial != serial:
                continue
            data.queue_serial = None
            self._queued -= 1
            if not self._is_candidate(node):
                continue
            if order == self._order(node):
                return node
            self._push(node, data)
        return None

    def __len__(self) -> int:
        """Entries in the heap, including stale entries."""
        return len(self._heap)

    def _data(self, node: Node) -> ComponentData:
        return (node.host if self._is_host else node.device)[self._component]

    def _push(self, node: Node, data: ComponentData) -> None:
        self._serial += 1
        self._queued += 1
        data.queue_serial = self._serial
        heapq.heappush(self._heap, (self._order(node), self._serial, node, data))
        self._compact_when_sparse()

    def _compact_when_sparse(self) -> None:
        if len(self._heap) <= COMPACT_FROM + 2 * self._queued:
            return
        self._heap = [entry for entry in self._heap if entry[3].queue_serial == entry[1]]
        heapq.heapify(self._heap)
