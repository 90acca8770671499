"""TreeComponent: what one kind of cached data decides about nodes, on each tier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from hicache.components.holding import FULL, Holding, Ways
from hicache.components.page_store import PageBank, PageStore
from hicache.config import CacheConfig
from hicache.events import EventLog
from hicache.keys import page_bytes
from hicache.metrics import Counters
from hicache.tree.hashes import node_hashes
from hicache.tree.node import Node
from hicache.tree.policies import Order
from hicache.tree.recency import EvictionQueue
from hicache.types import NO_SLOTS, EventKind, Slots, Tier

Validator = Callable[[Node], bool]
"""Told every node of one walk from the root down, in order; says whether the component is valid at that node's end."""

Stretch = tuple[Node, int]
"""A node, and how many of its last pages are meant."""


@dataclass(slots=True)
class Insertion:
    """One insert under way, in pages.

    `pages`: the caller's FULL pages for the whole key. `met`: the tree's, node by node, where the key met old nodes.
    `window_start`: first page from which on all have SWA data. `state`: the MAMBA state after the last page, or None.
    `now`: the moment. `priority`: the request's. `prefix_end`: the end of what the device had. `state_adopted`: the
    tree took the state.
    """

    pages: Slots
    met: list[Slots]
    window_start: int
    state: int | None
    now: int
    priority: int
    prefix_end: int
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
    """What a component works on: configuration, pools of each tier, event log and counters of its cache."""

    config: CacheConfig
    pools: PageStore
    bank: PageBank | None
    events: EventLog
    counters: Counters


class TreeComponent(ABC):
    """One component. What it has on a tier is a Holding; what it decides are the hooks.

    Every hook is abstract and takes exactly its arguments: a component that forgets one cannot be created, and a
    caller that misspells one fails.
    """

    name: ClassVar[str]

    def __init__(self, index: int, components: int, surroundings: Surroundings) -> None:
        self.index = index
        self.config = surroundings.config
        self.pools = surroundings.pools
        self._components = components
        self._events = surroundings.events
        self._counters = surroundings.counters
        self._bytes_per_page = page_bytes(self.config.page_size, self.config.bigram)
        self.device = self._holding(Tier.DEVICE, surroundings.pools.capacity_pages(self.name), self.give_back)
        self.holdings = [self.device]
        if surroundings.bank is not None:
            bank = surroundings.bank
            give_back = partial(bank.free, self.name)
            self.host = self._holding(Tier.HOST, bank.capacity_pages(self.name), give_back)
            self.holdings.append(self.host)

    # Decisions.

    @abstractmethod
    def order(self) -> Order:
        """What candidates on the device are sorted by, the first victim first."""

    @abstractmethod
    def renews(self) -> bool:
        """Whether use brings a node nearer to eviction."""

    @abstractmethod
    def is_candidate(self, node: Node) -> bool:
        """Whether the node may be evicted from the device for this component now."""

    @abstractmethod
    def is_host_candidate(self, node: Node) -> bool:
        """Whether the node's host data may be evicted for this component now."""

    @abstractmethod
    def validator(self, places: tuple[int, ...]) -> Validator:
        """A fresh validator for one walk. Data at any of the places counts."""

    @abstractmethod
    def needed(self, node: Node) -> list[Stretch]:
        """Where a reader up to the node's end needs this component."""

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
    def arrive(self, node: Node, pages: Slots) -> bool:
        """A load brought these pages to the device; False when the node cannot take them."""

    @abstractmethod
    def commit(self, node: Node, insertion: Insertion) -> None:
        """The key made a new node."""

    @abstractmethod
    def split(self, upper: Node, lower: Node) -> None:
        """A node was cut: share its data and locks between the parts. `lower` still holds all of both."""

    @abstractmethod
    def acquire(self, node: Node, holding: Holding) -> int:
        """Lock on one tier what a reader up to the node's end needs; returns what `release` must know."""

    @abstractmethod
    def release(self, node: Node, mark: int, holding: Holding) -> None:
        """Undo the acquire that returned `mark`."""

    @abstractmethod
    def touch(self, node: Node, now: int) -> None:
        """A request used the path to the node."""

    @abstractmethod
    def give_back(self, pages: Slots) -> None:
        """Free what was dropped on the device."""

    # What most components have in common.

    def freed_by(self, node: Node) -> Slots:
        """The pages that `give_back` gets for a node that lets go on the device."""
        pages = node.values[self.index]
        assert pages is not None, f"{self.name}: {node!r} holds nothing"
        return pages

    def reported_blocks(self, digests: list[bytes]) -> list[bytes]:
        """Which of a node's pages an event about this component names."""
        return digests

    def host_order(self, node: Node) -> tuple[bool, int, int]:
        """What is on the host alone goes first: a copy of what is on the device costs nothing but itself."""
        return node.values[self.index] is not None, node.touched[self.index], node.end

    def is_missing(self, node: Node) -> bool:
        """Whether the node lacks this component on every tier."""
        return all(node.values[holding.place] is None for holding in self.holdings)

    def _holding(self, tier: Tier, capacity_pages: int, give_back: Callable[[Slots], None]) -> Holding:
        on_device = tier is Tier.DEVICE
        place = self.index if on_device else self._components + self.index
        queue = EvictionQueue(
            place,
            self.order() if on_device else self.host_order,
            self.is_candidate if on_device else self.is_host_candidate,
            self.renews() and on_device,
            self._counters,
        )
        freed_by = self.freed_by if on_device else partial(_pages_at, place)
        ways = Ways(capacity_pages, freed_by, give_back, partial(self.report, tier))
        return Holding(
            self.name,
            tier=0 if on_device else 1,
            place=place,
            leads=self.index == FULL,
            ways=ways,
            queue=queue,
            counters=self._counters,
        )

    def report(self, tier: Tier, kind: EventKind, node: Node) -> None:
        """Tell the event log what became of the node's data on a tier."""
        if self._events.enabled:
            blocks = self.reported_blocks(node_hashes(node, self._bytes_per_page, self._counters))
            self._events.record(kind, tier, self.name, node.namespace, blocks)


def holder_at(places: tuple[int, ...]) -> Validator:
    """Says of a node whether it has data at one of these places. Asked at every node of every walk."""
    if len(places) == 1:
        (place,) = places
        return lambda node: node.values[place] is not None
    return lambda node: any(node.values[place] is not None for place in places)


def _pages_at(place: int, node: Node) -> Slots:
    pages = node.values[place]
    assert pages is not None, f"{node!r} holds nothing at place {place}"
    return pages
