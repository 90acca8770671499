"""ComponentTree: the components of a cache acting together on one radix tree: match, insert, evict, lock."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hicache.components.base import ComponentTier, DevicePages, HostPages, Insertion, TreeComponent, Validator
from hicache.components.full import FullComponent
from hicache.components.mamba import MambaComponent
from hicache.components.swa import SwaComponent
from hicache.config import CacheConfig, WritePolicy
from hicache.errors import ConfigurationError, ReceiptError, SlotError, StaleHandleError
from hicache.events import EventLog
from hicache.keys import RadixKey, page_bytes
from hicache.metrics import Counters
from hicache.tree.node import FULL, Node, NodeShape
from hicache.tree.radix import RadixTree
from hicache.types import NO_SLOTS, EventKind, Slots, Tier

SLOT_BYTES = NO_SLOTS.itemsize

REGISTRY: dict[str, type[TreeComponent]] = {
    component.name: component for component in (FullComponent, SwaComponent, MambaComponent)
}
"""The components by name, in component order. A new one is one file and one entry here."""


class Match(NamedTuple):
    """How far a key is cached, on the device and on both tiers, from one walk.

    `path`: the nodes on the key down to the best match. `anchor`, `best`: the deepest nodes at which every component is
    valid, on the device alone and on both tiers. `anchor_steps`: how many nodes of the path lead to the anchor.
    `reached_end`: the end in pages of the last node past the best match at which all components but the last one are
    valid, or 0. `full_end`: where FULL ends on both tiers, in pages.
    """

    path: list[Node]
    anchor: Node
    best: Node
    anchor_steps: int
    reached_end: int
    full_end: int

    def pages_on_host(self, component: TreeComponent) -> int:
        """How much of what a reader up to the best match needs of a component is on the host alone."""
        if self.best is self.anchor:
            return 0
        index, pages_on_host = component.index, 0
        for node, pages in component.needed(self.best):
            copy = node.host[index].value
            if node.device[index].value is None and copy is not None:
                pages_on_host += min(pages, len(copy))
        return pages_on_host

    def refused_pages(self, components: int) -> list[int]:
        """How many pages shorter the best match is with each component but FULL than with those before it."""
        # With at most two of them, these ends are all that there are.
        ends = (self.full_end, max(self.reached_end, self.best.end), self.best.end)
        return [before - end for before, end in pairwise(ends[-components:])]


class ComponentTree:
    """A radix tree and what its components have on its nodes. Data is installed FULL first and dropped FULL last.

    `radix`: the tree itself. `locks`: the receipts over its nodes. `is_write_back`: nodes are backed up only when they
    must leave the device, so from the leaves up.
    """

    def __init__(
        self,
        config: CacheConfig,
        device_pages: DevicePages,
        host_pages: HostPages | None,
        events: EventLog,
        counters: Counters,
    ) -> None:
        unknown = [name for name in config.components if name not in REGISTRY]
        if unknown:
            raise ConfigurationError(f"components {unknown} are unknown; known: {sorted(REGISTRY)}")
        ranked = [component for name, component in REGISTRY.items() if name in config.components]
        self.config = config
        self.counters = counters
        self.events = events
        self.now = 0
        self.has_host = host_pages is not None
        self.is_write_back = config.host is not None and config.host.write_policy is WritePolicy.WRITE_BACK
        shape = NodeShape(len(ranked), self.has_host)
        self.radix = RadixTree(page_bytes(config.page_size, config.bigram), shape, self._on_split, counters)
        self.components = [
            component(index, config, device_pages, host_pages, events, counters)
            for index, component in enumerate(ranked)
        ]
        self.by_name = {component.name: component for component in self.components}
        self._full_last = [tier for component in reversed(self.components) for tier in component.tiers]
        self.unfreed: list[ComponentTier] = []
        for tier in self._full_last:
            tier.unfreed = self.unfreed
        self.locks = Locks(self)

    def tick(self) -> int:
        """The next moment of the tree's own time: what is used later has a higher one."""
        self.now += 1
        return self.now

    # Reading.

    def validators(self, *, device_only: bool) -> list[Validator]:
        """Fresh validators for one walk, in component order. Host data counts unless `device_only`."""
        on_device = device_only or not self.has_host
        # Without a host tier every node has FULL on the device, so FULL is always valid.
        components = self.components if self.has_host else self.components[1:]
        return [component.validator(device_only=on_device) for component in components]

    def match(self, key: RadixKey) -> Match:
        """Walk a key once. Every validator sees every node, also after another refused it (sglang#25277)."""
        validators = self.validators(device_only=True)
        on_both = self.validators(device_only=False) if self.has_host else []
        on_both_but_last = on_both[:-1]
        anchor = best = self.radix.root
        path: list[Node] = []
        anchor_steps = best_steps = reached_end = 0
        for node in self.radix.walk(key):
            path.append(node)
            valid = valid_but_last = True
            for validate in validators:
                valid_but_last, valid = valid, validate(node) and valid
            if valid:
                anchor, anchor_steps = node, len(path)
            if on_both:
                valid_but_last = all_valid(on_both_but_last, node)
                valid = on_both[-1](node) and valid_but_last
            if valid:
                best, best_steps, reached_end = node, len(path), 0
            elif valid_but_last:
                reached_end = node.end
        full_end = path[-1].end if path else 0
        del path[best_steps:]
        return Match(path, anchor, best, anchor_steps, reached_end, full_end)

    def device_end(self, node: Node) -> int:
        """Where a reader up to the node would end on the device alone, in pages."""
        validators = self.validators(device_only=True)
        return max((step.end for step in node.path() if all_valid(validators, step)), default=0)

    def is_on_host(self, node: Node) -> bool:
        """Whether the node has a copy of its FULL pages on the host."""
        return self.has_host and node.host[FULL].value is not None

    def can_back_up_child(self, parent: Node) -> bool:
        """Whether a child may have a host copy. No prefix has a gap on the host, except with write_back."""
        return parent.is_root or self.is_write_back or self.is_on_host(parent)

    def can_back_up(self, component: TreeComponent, node: Node) -> bool:
        """Whether the host has what a host copy needs: the components before it, and for FULL the parent's copy."""
        if component.index > FULL:
            return all(data.value is not None for data in node.host[: component.index])
        assert node.parent is not None, "the root has nothing to back up"
        return self.can_back_up_child(node.parent)

    # Changing.

    def touch(self, node: Node, now: int) -> None:
        """A request uses the prefix that ends at the node."""
        if node.parent is not None:
            for component in self.components:
                component.touch(node, now)

    def require(self, node: object) -> None:
        """Raise StaleHandleError unless it is a node of this tree."""
        if not isinstance(node, Node) or node.root is not self.radix.root:
            raise StaleHandleError(f"{node!r} is not in the tree any more, or is not a handle of this cache")

    def insert(self, key: RadixKey, insertion: Insertion) -> tuple[Node, int]:
        """Insert a key; returns the last node, and where a match would end on the device, in pages.

        Raises SlotError, changing nothing, when a page is the tree's at another place than this one.
        """
        path, end = self.radix.trace(key)
        insertion.duplicates = self._duplicates(insertion.pages, _pages_on(path, end))
        validators = self.validators(device_only=True)
        node, accepted_end = self.radix.root, 0
        for met in self.radix.cut(path, end):
            for node in self._cut_before_overlap(met, insertion):
                for component in self.components:
                    component.overlap(node, insertion)
                accepted_end = node.end if all_valid(validators, node) else accepted_end
        for end in self._leaf_ends(node.end, insertion):
            node = self._attach(node, key, end, insertion)
            accepted_end = node.end if all_valid(validators, node) else accepted_end
        return node, accepted_end

    def evict(self, node: Node, target: TreeComponent) -> None:
        """Evict one victim of a component from the device: a leaf whole, else the component and those after it."""
        self.counters.traffic.device_evictions += 1
        if node.device_children or node.device[FULL].lock_ref:
            self._drop_on_device(node, self.components[target.index :])
        elif self.is_on_host(node):
            self._drop_on_device(node, self.components)
            self._propagate_recency(node)
            self.prune_and_requeue(node)
        else:
            self.prune_and_requeue(self._remove(node))

    def trim(self, node: Node) -> None:
        """Evict from the device what the path to a node has more of than it may keep."""
        for component in self.components:
            for step in component.excess(node):
                self.evict(step, component)

    def evict_host(self, node: Node, target: TreeComponent) -> None:
        """Evict one victim of a component from the host: the node when it is nowhere else, else only that copy."""
        self.counters.traffic.host_evictions += 1
        if node.children or node.is_locked or node.device[FULL].value is not None:
            for component in reversed(self.components[target.index :]):
                component.host.drop(node)
            self.prune_and_requeue(node)
        else:
            self.prune_and_requeue(self._remove(node))

    def prune_and_requeue(self, node: Node) -> None:
        """The node lost a child, a lock or data. Remove it while no match can end there, then queue what remains."""
        while node.parent and not node.children and not node.is_locked and self._is_unmatchable(node):
            node = self._remove(node)
        for tier in self._full_last:
            tier.queue.offer(node)

    def remove_below(self, node: Node) -> bool:
        """Remove all nodes below one that must leave; False, with nothing changed, when one of them is locked."""
        below: list[Node] = []
        stack = list(node.children.values())
        while stack:
            step = stack.pop()
            below.append(step)
            stack.extend(step.children.values())
        if any(step.is_locked for step in below):
            return False
        for step in reversed(below):
            self._remove(step)
        return True

    def report_removed(self) -> None:
        """Record of all that any node has that it was removed."""
        for node in self.radix.nodes():
            for component in self.components:
                for tier in component.tiers:
                    if tier.data(node).value is not None:
                        component.report(tier.tier, EventKind.REMOVED, node)

    def reset(self) -> None:
        """Remove every node, locked or not. All receipts are refused from now on."""
        self.locks.reset()
        for node in self.radix.nodes():
            for tier in self._full_last:
                tier.drop_locked(node)
        self.radix.reset()
        self.radix.root.device_children = self.radix.root.host_children = 0

    def free_dropped(self) -> None:
        """Free the pages of all that was dropped. SWA goes before FULL, whose partners its pages are."""
        for tier in self._full_last:
            tier.free_dropped()
        self.unfreed.clear()

    def _duplicates(self, pages: Slots, tree_pages: bytes) -> Slots:
        """The caller's pages where the tree has other ones. Raises SlotError for one that it has at another place."""
        own = np.frombuffer(tree_pages, dtype=np.int64)
        shared, duplicates = len(own), NO_SLOTS
        if not pages.tobytes().startswith(tree_pages):
            given = pages[: len(own)]
            differs = given != own
            shared = differs.tobytes().count(0)
            duplicates = given.compress(differs & (own > 0) if self.has_host else differs)
        if self.components[FULL].device.owned(pages) != shared:
            raise SlotError(
                f"of pages {pages.tolist()} some are the tree's at other places: here it has {own.tolist()}"
            )
        return duplicates

    def _cut_before_overlap(self, node: Node, insertion: Insertion) -> list[Node]:
        for component in self.components:
            cut = component.cut_before_overlap(node, insertion)
            if cut is not None:
                return [self.radix.split(node, cut - node.start), node]
        return [node]

    def _leaf_ends(self, start: int, insertion: Insertion) -> list[int]:
        """Where the new nodes past page `start` end. None, when no match could end there."""
        total = len(insertion.pages)
        if start == total:
            return []
        ends = {total}
        for component in self.components:
            if component.refuses_leaf(start, insertion):
                return []
            ends.update(component.leaf_cuts(start, insertion))
        return sorted(ends)

    def _attach(self, parent: Node, key: RadixKey, end: int, insertion: Insertion) -> Node:
        leaf = self.radix.attach(parent, key, end)
        leaf.creation_time, leaf.priority = insertion.now, insertion.priority
        for component in self.components:
            component.commit(leaf, insertion)
        return leaf

    def _on_split(self, upper: Node, lower: Node) -> None:
        under_way = [data.transfer for data in (*lower.device, *lower.host) if data.transfer is not None]
        for transfer in {id(transfer): transfer for transfer in under_way}.values():
            transfer.split(upper, lower)
        for component in self.components:
            component.split(upper, lower)

    def _is_unmatchable(self, node: Node) -> bool:
        """Whether a component is on no tier, so that no match can end here."""
        return any(component.is_missing(node) for component in self.components)

    def _drop_on_device(self, node: Node, components: list[TreeComponent]) -> None:
        """Drop some components on the device. Their host copies, if any, come earlier in the order from now on."""
        for component in reversed(components):
            component.device.drop(node)
            if self.has_host:
                component.host.queue.move_forward(node)

    def _remove(self, node: Node) -> Node:
        """Remove a leaf with all that it has; returns its parent."""
        for tier in self._full_last:
            tier.drop(node)
        parent = self.radix.remove(node)
        self._propagate_recency(node)
        return parent

    def _propagate_recency(self, node: Node) -> None:
        """The node left the device or the tree: its priority and last use pass to the parent."""
        parent = node.parent
        assert parent is not None, "the root never leaves"
        parent.priority = max(parent.priority, node.priority)
        parent.last_access_time[FULL] = max(parent.last_access_time[FULL], node.last_access_time[FULL])
        self.components[FULL].device.queue.touch(parent)


def _pages_on(path: list[Node], end: int) -> bytes:
    """The FULL pages on the device of a path up to page `end` as bytes, 0 where it has none there."""
    values = [node.device[FULL].value for node in path]
    parts = [
        bytes(node.pages * SLOT_BYTES) if value is None else value.tobytes()
        for node, value in zip(path, values, strict=True)
    ]
    return b"".join(parts)[: end * SLOT_BYTES]


def all_valid(validators: list[Validator], node: Node) -> bool:
    """Every validator sees every node, also after another refused it: SWA counts its run (sglang#25277)."""
    valid = True
    for validate in validators:
        valid = validate(node) and valid
    return valid


@dataclass(frozen=True, slots=True, eq=False)
class LockReceipt:
    """What a lock took: the node, the tier, and for each component that it holds what it must know to give it back.

    The components are the first ones of the tree. `other`: the lock on the other tier where this one lacks the node:
    the device lock of a node without a host copy, or the host lock of one that is on the host alone.
    """

    node: Node
    tier: Tier
    marks: tuple[int, ...]
    other: LockReceipt | None


class Locks:
    """The receipts that are not released. `pins`: those of the cache's own transfers; the others are callers'."""

    def __init__(self, tree: ComponentTree) -> None:
        self._tree = tree
        self._receipts: set[LockReceipt] = set()
        self._by_tier: dict[Tier, list[tuple[TreeComponent, ComponentTier]]] = {
            tier: [(component, component.tiers[place]) for component in tree.components]
            for place, tier in enumerate((Tier.DEVICE, Tier.HOST)[: 1 + tree.has_host])
        }
        self.pins: set[LockReceipt] = set()

    def lock(self, node: Node, tier: Tier, components: int | None = None) -> LockReceipt:
        """Protect on one tier all that a reader up to the node's end needs, of so many components or of all.

        Of a node that is on the host alone a device lock protects the host data, and on the device its path. Raises
        StaleHandleError for a node that is not in the tree.
        """
        receipt = self._acquire(node, tier, components)
        self._receipts.add(receipt)
        return receipt

    def unlock(self, receipt: object, tier: Tier) -> None:
        """Undo the lock. Raises ReceiptError unless it is outstanding, of this tier and taken since the last reset."""
        known = self._require(receipt, tier)
        self._receipts.remove(known)
        self._release(known)

    def unlock_from(self, receipt: object, tier: Tier, component: int) -> LockReceipt:
        """Undo the lock of a component and of those after it; returns the receipt of the rest. Raises as `unlock`."""
        known = self._require(receipt, tier)
        if len(known.marks) <= component:
            return known
        left = _first_components(known, component)
        self._receipts.remove(known)
        self._receipts.add(left)
        self._release(known, component)
        return left

    def pin(self, node: Node, tier: Tier) -> LockReceipt:
        """As `lock`, for the cache itself."""
        receipt = self._acquire(node, tier, None)
        self.pins.add(receipt)
        return receipt

    def unpin(self, *receipts: LockReceipt) -> None:
        """Undo pins. One that a reset has ended is skipped."""
        for receipt in receipts:
            if receipt in self.pins:
                self.pins.remove(receipt)
                self._release(receipt)

    def reset(self) -> None:
        """Refuse every receipt from now on."""
        self._receipts.clear()
        self.pins.clear()

    def _require(self, receipt: object, tier: Tier) -> LockReceipt:
        if not isinstance(receipt, LockReceipt) or receipt not in self._receipts or receipt.tier is not tier:
            raise ReceiptError(f"{receipt!r} was released before, or is not such a receipt of this cache")
        return receipt

    def _acquire(self, node: Node, tier: Tier, components: int | None) -> LockReceipt:
        self._tree.require(node)
        other = None
        if tier is Tier.HOST and not self._tree.is_on_host(node):
            other = self._acquire(node, Tier.DEVICE, components)
        elif tier is Tier.DEVICE and node.parent is not None and node.device[FULL].value is None:
            other = self._acquire(node, Tier.HOST, components)
            node = node.last_on_device()
        held = self._by_tier[tier][:components]
        return LockReceipt(node, tier, tuple([component.acquire(node, on_tier) for component, on_tier in held]), other)

    def _release(self, receipt: LockReceipt, first: int = 0) -> None:
        """Undo the lock of the components from the first one on."""
        held = zip(self._by_tier[receipt.tier][first:], receipt.marks[first:], strict=False)
        for (component, tier), mark in held:
            component.release(receipt.node, mark, tier)
        if receipt.other is not None:
            self._release(receipt.other, first)
        if receipt.node.alive:
            self._tree.prune_and_requeue(receipt.node)


def _first_components(receipt: LockReceipt, count: int) -> LockReceipt:
    other = None if receipt.other is None else _first_components(receipt.other, count)
    return LockReceipt(receipt.node, receipt.tier, receipt.marks[:count], other)
