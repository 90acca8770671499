"""TreeComponent: what one kind of cached data decides about nodes, and the bookkeeping that all kinds share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hicache.components.page_store import PageStore
from hicache.config import CacheConfig
from hicache.events import EventLog
from hicache.keys import page_bytes
from hicache.metrics import Counters
from hicache.tree.hashes import node_hashes
from hicache.tree.node import Node
from hicache.tree.policies import Order
from hicache.tree.recency import EvictionQueue
from hicache.types import NO_SLOTS, EventKind, Slots

FULL = 0
"""FULL's place among the components of a node. The others follow in rank order."""

Validator = Callable[[Node], bool]
"""Told every node of one walk from the root down, in order; says whether the component is valid at that node's end."""


@dataclass(slots=True)
class Insertion:
    """One insert under way, in pages.

    `pages`: the caller's FULL pages for the whole key. `met`: the tree's, node by node, where the key met old nodes.
    `window_start`: first page from which on all have SWA data. `state`: the MAMBA state after the last page, or None.
    `now`: the moment. `priority`: the request's. `state_adopted`: the tree took the state.
    """

    pages: Slots
    met: list[Slots]
    window_start: int
    state: int | None
    now: int
    priority: int
    state_adopted: bool

    def part(self, node: Node) -> Slots:
        """The caller's pages for a node's stretch."""
        return self.pages[node.start : node.end]

    def duplicates(self) -> Slots:
        """The caller's pages where the tree has another one: what the caller shares with it is the same page."""
        if not self.met:
            return NO_SLOTS
        held: Slots = np.concatenate(self.met)
        given = self.pages[: len(held)]
        return given.compress(given != held)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a component works on: the configuration, the pools, the event log and the counters of its cache."""

    config: CacheConfig
    pools: PageStore
    events: EventLog
    counters: Counters


class TreeComponent(ABC):
    """One component. Its data on a node is `node.values[index]`: pages, int64, or None.

    Every hook is abstract and takes exactly its arguments: a component that forgets one cannot be created, and a
    caller that misspells one fails.
    """

    name: ClassVar[str]

    def __init__(self, index: int, surroundings: Surroundings) -> None:
        self.index = index
        self.config = surroundings.config
        self.pools = surroundings.pools
        self._events = surroundings.events
        self._counters = surroundings.counters
        self._bytes_per_page = page_bytes(self.config.page_size, self.config.bigram)
        self.evictable_pages = 0
        self.protected_pages = 0
        self.dropped_pages = 0
        self._dropped: list[Slots] = []
        # Both ends are nobody's, so that a foreign page, clipped to the range, is not owned.
        self._is_owned = np.zeros(self.pools.capacity_pages(self.name) + 2, dtype=np.bool_)
        self.queue = EvictionQueue(index, self.order(), self.is_candidate, self.renews(), surroundings.counters)

    # Decisions.

    @abstractmethod
    def order(self) -> Order:
        """What candidates are sorted by, the first victim first."""

    @abstractmethod
    def renews(self) -> bool:
        """Whether use brings a node nearer to eviction."""

    @abstractmethod
    def is_candidate(self, node: Node) -> bool:
        """Whether the node may be evicted for this component now."""

    @abstractmethod
    def validator(self) -> Validator:
        """A fresh validator for one walk."""

    @abstractmethod
    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        """Whether a new leaf from page `start` to the key's end could never be matched."""

    @abstractmethod
    def cuts(self, start: int, insertion: Insertion) -> list[int]:
        """Pages at which a new leaf from `start` to the key's end must be cut."""

    @abstractmethod
    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        """The page at which an existing node must be split before it meets the insertion, or None."""

    @abstractmethod
    def overlap(self, node: Node, insertion: Insertion) -> None:
        """The key covers an existing node."""

    @abstractmethod
    def commit(self, node: Node, insertion: Insertion) -> None:
        """The key made a new node."""

    @abstractmethod
    def split(self, upper: Node, lower: Node) -> None:
        """A node was cut: share its data and locks between the parts. `lower` still holds all of both."""

    @abstractmethod
    def acquire(self, node: Node) -> int:
        """Lock what a request that reads up to the node's end needs; returns what `release` must know."""

    @abstractmethod
    def release(self, node: Node, mark: int) -> None:
        """Undo the acquire that returned `mark`."""

    @abstractmethod
    def touch(self, node: Node, now: int) -> None:
        """A request used the path to the node."""

    @abstractmethod
    def give_back(self, pages: Slots) -> None:
        """Free what was dropped."""

    # Bookkeeping.

    def hold(self, node: Node, pages: Slots) -> None:
        """The node holds these pages from now on. What its queue sorts by is set before, or eviction must mend it."""
        node.values[self.index] = pages
        self._is_owned[pages] = True
        self.evictable_pages += len(pages)
        self._report(EventKind.STORED, node)
        self.queue.offer(node)

    def drop(self, node: Node) -> None:
        """The node, unlocked, holds nothing any more. The pages are freed by the next `flush`."""
        pages = node.values[self.index]
        if pages is None:
            return
        if node.locks[self.index]:
            raise ValueError(f"{self.name}: {node!r} is locked and cannot be dropped")
        self._report(EventKind.REMOVED, node)
        self._dropped.append(self.freed_by(node))
        self.dropped_pages += len(pages)
        self.evictable_pages -= len(pages)
        self._is_owned[pages] = False
        node.values[self.index] = None
        self.queue.withdraw(node)

    def owns(self, pages: Slots) -> bool:
        """Whether a node holds one of these pages."""
        return bool(np.count_nonzero(self._is_owned.take(pages, mode="clip")))

    def forget(self, node: Node) -> None:
        """Drop the node's data whatever locks it, and the locks with it."""
        if node.locks[self.index]:
            node.locks[self.index] = 0
            self._move_size(node, -1)
        self.drop(node)

    def discard(self, pages: Slots) -> None:
        """Free pages of the caller's that no node takes, with the next flush."""
        if len(pages):
            self._dropped.append(pages)

    def freed_by(self, node: Node) -> Slots:
        """The pages that `give_back` gets for a dropped node."""
        pages = node.values[self.index]
        assert pages is not None, f"{self.name}: {node!r} holds nothing"
        return pages

    def flush(self) -> None:
        """Free all that was dropped, in one go."""
        if self._dropped:
            dropped, self._dropped, self.dropped_pages = self._dropped, [], 0
            self.give_back(np.concatenate(dropped))

    def pin(self, node: Node) -> bool:
        """Count one more lock; True when it is the first."""
        self._counters.nodes_locked += 1
        node.locks[self.index] += 1
        if node.locks[self.index] > 1:
            return False
        self._move_size(node, 1)
        return True

    def unpin(self, node: Node) -> bool:
        """Count one lock less; True when it was the last."""
        if node.locks[self.index] < 1:
            raise ValueError(f"{self.name}: {node!r} is not locked")
        self._counters.nodes_locked += 1
        node.locks[self.index] -= 1
        if node.locks[self.index]:
            return False
        self._move_size(node, -1)
        self.queue.offer(node)
        return True

    def reported_blocks(self, digests: list[bytes]) -> list[bytes]:
        """Which of a node's pages an event about this component names."""
        return digests

    def _report(self, kind: EventKind, node: Node) -> None:
        if self._events.enabled:
            blocks = self.reported_blocks(node_hashes(node, self._bytes_per_page, self._counters))
            self._events.record(kind, self.name, node.namespace, blocks)

    def _move_size(self, node: Node, sign: int) -> None:
        pages = node.values[self.index]
        if pages is not None:
            self.protected_pages += sign * len(pages)
            self.evictable_pages -= sign * len(pages)

    def divide(self, upper: Node, lower: Node) -> None:
        """Share the pages of a cut node between its parts, each with its own array."""
        pages = lower.values[self.index]
        if pages is not None:
            upper.values[self.index] = pages[: upper.pages].copy()
            lower.values[self.index] = pages[upper.pages :].copy()
        upper.touched[self.index] = lower.touched[self.index]
