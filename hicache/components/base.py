"""TreeComponent: what one kind of cached data decides about nodes; ComponentTier: what it has on one tier."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from hicache.config import CacheConfig
from hicache.events import EventLog
from hicache.keys import page_bytes
from hicache.metrics import Counters
from hicache.tree.eviction import EvictionQueue, Order
from hicache.tree.hashes import node_hashes
from hicache.tree.node import FULL, ComponentData, Node
from hicache.types import NO_SLOTS, EventKind, Sizes, Slots, Tier

Validator = Callable[[Node], bool]
"""Gets every node of one walk from the root down, in order. Says whether the component is valid at that node's end."""

Tail = tuple[Node, int]
"""A node, and how many of its last pages are needed; for MAMBA all of its pages, since its state is at its end."""


class DevicePages(Protocol):
    """The device pools as components see them: pages, int64 [pages], and no tensors. A state is a page of one slot."""

    def capacity_pages(self, component: str) -> int:
        """The number of pages in a component's pool. They are 1 to this number."""

    def free(self, pages: Slots) -> None:
        """Free FULL pages and their SWA partners."""

    def free_partners(self, pages: Slots) -> None:
        """Free the SWA partners of FULL pages."""

    def free_states(self, states: Slots) -> None:
        """Free MAMBA states."""

    def partners(self, pages: Slots) -> Slots:
        """The SWA page of each FULL page, 0 where it has none."""

    def pair(self, pages: Slots, window: Slots) -> None:
        """Make SWA pages the partners of FULL pages that have none."""

    def move_partners(self, source: Slots, target: Slots) -> Slots:
        """Give the partners of some FULL pages to others that have none; returns them."""


class HostPages(Protocol):
    """The host pools as components see them: pages, int64 [pages], of each component on its own."""

    def capacity_pages(self, component: str) -> int:
        """The number of pages in a component's pool. They are 1 to this number."""

    def free(self, component: str, pages: Slots) -> None:
        """Free pages of a component."""


@dataclass(slots=True)
class Insertion:
    """One insert in progress, in pages.

    `pages`: the caller's FULL pages for the whole key. `duplicates`: those where the tree has another page. A page that
    the caller shares with the tree is none. `window_start`: the first page from which on all have SWA data. `state`:
    the MAMBA state after the last page, or None. `now`: the time. `priority`: the request's. `prefix_end`: the end of
    what the device had. `state_adopted`: the tree took the state.
    """

    pages: Slots
    duplicates: Slots
    window_start: int
    state: int | None
    now: int
    priority: int
    prefix_end: int
    state_adopted: bool

    def part(self, node: Node) -> Slots:
        """The caller's pages for one node."""
        return self.pages[node.start : node.end]


class ComponentTier:
    """What one component has on one tier: the data of its nodes, its eviction queue, its size counters and its locks.

    `evictable_pages`, `protected_pages`: of unlocked and of locked nodes. `dropped`: what the next `free_dropped`
    frees. `dropped_pages`: how many of these pages nodes had. `unfreed`: has this tier while there is something to
    free; all tiers of a tree have the same list.
    """

    def __init__(
        self,
        component: TreeComponent,
        tier: Tier,
        capacity_pages: int,
        free: Callable[[Slots], None],
        counters: Counters,
    ) -> None:
        self.tier = tier
        self.evictable_pages = 0
        self.protected_pages = 0
        self.dropped_pages = 0
        self._is_host = tier is Tier.HOST
        self._component = component
        self._index = component.index
        self._counters = counters
        self._free = free
        self.dropped: list[Slots] = []
        self.unfreed: list[ComponentTier] = []
        # One guard entry at each end: an out-of-range page is clipped to it, and it is never owned.
        self._is_owned = np.zeros(capacity_pages + 2, dtype=np.bool_)
        order = component.host_order if self._is_host else component.order()
        is_candidate = component.is_host_candidate if self._is_host else component.is_candidate
        renew = not self._is_host and component.use_brings_eviction_nearer()
        self.queue = EvictionQueue(tier, component.index, order, is_candidate, renew, counters)

    def data(self, node: Node) -> ComponentData:
        """The data of a node for this component on this tier."""
        return (node.host if self._is_host else node.device)[self._index]

    def install(self, node: Node, pages: Slots) -> None:
        """Give pages to a node that is not locked here. Set its access time and priority before."""
        data = self.data(node)
        if data.lock_ref or data.value is not None:
            raise ValueError(f"{self._component.name}: {node!r} cannot take pages on the {self.tier.value}")
        data.value = pages
        self._is_owned[pages] = True
        self.evictable_pages += len(pages)
        if self._index == FULL:
            self._count_at_parent(node, 1)
        self._component.report(self.tier, EventKind.STORED, node)
        self.queue.offer(node)

    def next_victim(self, passed: AbstractSet[int] = frozenset()) -> Node | None:
        """The next node that this component evicts from the device, or None. `passed`: ids of nodes not to take."""
        while (node := self.queue.pop()) is not None:
            if id(node) in passed:
                continue
            victim = self._component.victim(node, passed)
            if victim is not node:
                self.queue.offer(node)
            return victim
        return None

    def drop(self, node: Node) -> None:
        """Take the pages of a node that is not locked here. The next `free_dropped` frees them."""
        data = (node.host if self._is_host else node.device)[self._index]
        pages = data.value
        if pages is None:
            return
        if data.lock_ref:
            raise ValueError(f"{self._component.name}: {node!r} is locked on the {self.tier.value}")
        self._component.report(self.tier, EventKind.REMOVED, node)
        self.dropped.append(pages if self._is_host else self._component.pages_to_free(node))
        self.unfreed.append(self)
        self.dropped_pages += len(pages)
        self.evictable_pages -= len(pages)
        self._is_owned[pages] = False
        data.value = None
        self.queue.withdraw(node)
        if self._index == FULL:
            self._count_at_parent(node, -1)

    def drop_locked(self, node: Node) -> None:
        """Drop the node's data and all locks on it."""
        data = self.data(node)
        if data.lock_ref:
            data.lock_ref = 0
            if data.value is not None:
                self._protect(-len(data.value))
        self.drop(node)

    def free_later(self, pages: Slots) -> None:
        """Free pages that no node takes, with the next `free_dropped`. They are not counted in `dropped_pages`."""
        if len(pages):
            self.dropped.append(pages)
            self.unfreed.append(self)

    def free_dropped(self) -> None:
        """Free all that was dropped, in one call."""
        if self.dropped:
            pages = np.concatenate(self.dropped)
            self.dropped.clear()
            self.dropped_pages = 0
            self._free(pages)

    def keep_dropped(self, pages: Slots) -> Slots:
        """Of what was dropped, do not free these pages. Returns those of them that were dropped."""
        dropped = np.concatenate([NO_SLOTS, *self.dropped])
        self.dropped[:] = [np.setdiff1d(dropped, pages)]
        return np.intersect1d(dropped, pages)

    def reserve(self, pages: Slots) -> None:
        """Own pages that a transfer brings: callers may not free them."""
        self._is_owned[pages] = True

    def unreserve(self, pages: Slots) -> None:
        """Stop owning pages that no transfer brings any more."""
        self._is_owned[pages] = False

    def owned(self, pages: Slots) -> int:
        """How many of these pages belong to a node or to a transfer."""
        return self._is_owned.take(pages, mode="clip").tobytes().count(1)

    def inc_lock_ref(self, node: Node) -> bool:
        """Lock the node's data once more; True when it was not locked before."""
        self._counters.nodes_locked += 1
        data = (node.host if self._is_host else node.device)[self._index]
        data.lock_ref += 1
        if data.lock_ref > 1:
            return False
        if data.value is not None:
            self._protect(len(data.value))
        return True

    def dec_lock_ref(self, node: Node) -> bool:
        """Lock the node's data once less; True when it is not locked any more."""
        data = (node.host if self._is_host else node.device)[self._index]
        if data.lock_ref < 1:
            raise ValueError(f"{self._component.name}: {node!r} is not locked on the {self.tier.value}")
        self._counters.nodes_locked += 1
        data.lock_ref -= 1
        if data.lock_ref:
            return False
        if data.value is not None:
            self._protect(-len(data.value))
        self.queue.offer(node)
        return True

    def split(self, upper: Node, lower: Node) -> None:
        """Share the pages of a split node between its parts, each in an array of its own."""
        above, below = self.data(upper), self.data(lower)
        above.transfer = below.transfer
        pages = below.value
        if pages is None:
            return
        above.value = pages[: upper.pages].copy()
        below.value = pages[upper.pages :].copy()
        if self._index == FULL:
            self._count(upper, 1)

    def sizes(self, unit: int, free_pages: int) -> Sizes:
        """The size counters in slots. `unit`: slots of one page."""
        return Sizes(self.evictable_pages * unit, self.protected_pages * unit, free_pages * unit)

    def _count_at_parent(self, node: Node, by: int) -> None:
        parent = node.parent
        assert parent is not None, f"{self._component.name}: the root has no pages"
        self._count(parent, by)
        self.queue.offer(parent)

    def _count(self, parent: Node, by: int) -> None:
        if self._is_host:
            parent.host_children += by
        else:
            parent.device_children += by

    def _protect(self, pages: int) -> None:
        self.protected_pages += pages
        self.evictable_pages -= pages


class TreeComponent(ABC):
    """One component: the decisions that differ from component to component, and its ComponentTier on each tier.

    A component implements the abstract hooks and overrides defaults where it differs.
    """

    name: ClassVar[str]

    def __init__(
        self,
        index: int,
        config: CacheConfig,
        device_pages: DevicePages,
        host_pages: HostPages | None,
        events: EventLog,
        counters: Counters,
    ) -> None:
        self.index = index
        self.config = config
        self.device_pages = device_pages
        self._events = events
        self._counters = counters
        self._bytes_per_page = page_bytes(config.page_size, config.bigram)
        capacity = device_pages.capacity_pages(self.name)
        self.device = ComponentTier(self, Tier.DEVICE, capacity, self.free_on_device, counters)
        self.tiers = [self.device]
        if host_pages is not None:
            free = partial(host_pages.free, self.name)
            self.host = ComponentTier(self, Tier.HOST, host_pages.capacity_pages(self.name), free, counters)
            self.tiers.append(self.host)

    # Hooks that every component implements.

    @abstractmethod
    def is_candidate(self, node: Node) -> bool:
        """Whether the node may be evicted from the device for this component now."""

    @abstractmethod
    def is_host_candidate(self, node: Node) -> bool:
        """Whether the node's host data may be evicted for this component now."""

    @abstractmethod
    def validator(self, *, device_only: bool) -> Validator:
        """A fresh validator for one walk. Host data counts unless `device_only`."""

    @abstractmethod
    def needed(self, node: Node) -> list[Tail]:
        """The data that a reader up to the node's end needs of this component."""

    @abstractmethod
    def overlap(self, node: Node, insertion: Insertion) -> None:
        """The inserted key covers an existing node."""

    @abstractmethod
    def commit(self, node: Node, insertion: Insertion) -> None:
        """The insert made a new node."""

    @abstractmethod
    def install_loaded(self, node: Node, pages: Slots) -> bool:
        """Give a node the pages that a load-back brought to the device; False when the node cannot take them."""

    @abstractmethod
    def split(self, upper: Node, lower: Node) -> None:
        """A node was split: share its data and locks between the parts. `lower` still has all of both."""

    @abstractmethod
    def acquire(self, node: Node, tier: ComponentTier) -> int:
        """Lock on one tier what a reader up to the node's end needs; returns what `release` must know."""

    @abstractmethod
    def release(self, node: Node, mark: int, tier: ComponentTier) -> None:
        """Undo the acquire that returned `mark`."""

    @abstractmethod
    def touch(self, node: Node, now: int) -> None:
        """A request uses the prefix that ends at the node."""

    @abstractmethod
    def free_on_device(self, pages: Slots) -> None:
        """Free what was dropped on the device: the pages that `pages_to_free` gave."""

    # Hooks with a default.

    def order(self) -> Order:
        """What candidates on the device are sorted by; the smallest is evicted first."""
        return self._least_recent

    def use_brings_eviction_nearer(self) -> bool:
        """Whether a use moves a node forward in that order."""
        return False

    def victim(self, node: Node, passed: AbstractSet[int]) -> Node:
        """The node to evict where this one, which may be evicted, is the first in the order; none that was `passed`."""
        return node

    def excess(self, node: Node) -> list[Node]:
        """The nodes above this one that lose this component, because the path has too much of it."""
        return []

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        """Whether no match could ever end at a new leaf from page `start` to the end of the key."""
        return False

    def leaf_cuts(self, start: int, insertion: Insertion) -> list[int]:
        """Pages at which a new leaf from `start` to the end of the key must be split."""
        return []

    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        """The page at which an existing node must be split before `overlap`, or None."""
        return None

    def pages_to_free(self, node: Node) -> Slots:
        """The pages that `free_on_device` gets for a node that loses its data on the device."""
        pages = node.device[self.index].value
        assert pages is not None, f"{self.name}: {node!r} has nothing on the device"
        return pages

    def reported_blocks(self, digests: list[bytes]) -> list[bytes]:
        """The pages of a node that an event about this component names."""
        return digests

    # What all components have in common.

    def host_order(self, node: Node) -> tuple[bool, int, int]:
        """What is on the host alone is evicted first. Losing the copy of what is on the device costs the copy only."""
        return node.device[self.index].value is not None, node.last_access_time[self.index], node.end

    def is_missing(self, node: Node) -> bool:
        """Whether the node lacks this component on every tier."""
        is_on_host = node.host and node.host[self.index].value is not None
        return node.device[self.index].value is None and not is_on_host

    def report(self, tier: Tier, kind: EventKind, node: Node) -> None:
        """Record in the event log what happened to the node's data on a tier."""
        if self._events.enabled:
            blocks = self.reported_blocks(node_hashes(node, self._bytes_per_page, self._counters))
            self._events.record(kind, tier, self.name, node.namespace, blocks)

    def _least_recent(self, node: Node) -> tuple[int, int]:
        return node.last_access_time[self.index], node.end


def has_value(component: int, *, device_only: bool) -> Validator:
    """Says of a node whether it has a component on the device, or on the host unless `device_only`."""
    if device_only:
        return lambda node: node.device[component].value is not None
    return lambda node: node.device[component].value is not None or node.host[component].value is not None
