"""FULL: KV of full-attention layers, one slot per token. It decides which nodes exist."""

from __future__ import annotations

from typing import ClassVar

from hicache.components.base import ComponentTier, Insertion, Tail, TreeComponent, Validator, has_value
from hicache.tree.eviction import ORDERS, Order, use_brings_eviction_nearer
from hicache.tree.node import FULL, Node, is_any_locked
from hicache.types import Component, Slots


class FullComponent(TreeComponent):
    """Every node has it on some tier. Leaves are evicted in the order of the configured policy."""

    name: ClassVar[str] = Component.FULL.value

    def order(self) -> Order:
        return ORDERS[self.config.policy]

    def use_brings_eviction_nearer(self) -> bool:
        return use_brings_eviction_nearer(self.config.policy)

    def is_candidate(self, node: Node) -> bool:
        data = node.device[FULL]
        return not node.device_children and not data.lock_ref and data.value is not None

    def is_host_candidate(self, node: Node) -> bool:
        if node.host_children or node.host[FULL].value is None or is_any_locked(node.host):
            return False
        return node.device[FULL].value is not None or not is_any_locked(node.device)

    def validator(self, *, device_only: bool) -> Validator:
        return has_value(FULL, device_only=device_only)

    def needed(self, node: Node) -> list[Tail]:
        return [(step, step.pages) for step in node.path()]

    def overlap(self, node: Node, insertion: Insertion) -> None:
        if node.device[FULL].value is None:
            # A node that is on the host alone takes the new pages. A load-back of it keeps its own for its readers.
            self.device.install(node, insertion.part(node).copy())
        else:
            insertion.prefix_end = node.end

    def commit(self, node: Node, insertion: Insertion) -> None:
        node.last_access_time[FULL] = insertion.now
        self.device.install(node, insertion.part(node).copy())

    def install_loaded(self, node: Node, pages: Slots) -> bool:
        parent = node.parent
        if parent is None or not (parent.is_root or parent.device[FULL].value is not None):
            return False
        self.device.install(node, pages)
        return True

    def split(self, upper: Node, lower: Node) -> None:
        for tier in self.tiers:
            tier.split(upper, lower)
        upper.last_access_time[FULL] = lower.last_access_time[FULL]
        # On the device the receipts stay with the lower part, which the upper part counts as one locked child.
        upper.device[FULL].lock_ref = 1 if lower.device[FULL].lock_ref else 0
        for above, below in zip(upper.host[:1], lower.host[:1], strict=True):
            above.lock_ref = below.lock_ref

    def acquire(self, node: Node, tier: ComponentTier) -> int:
        if tier is not self.device:
            return _acquire_one(node, tier)
        while node.parent is not None and tier.inc_lock_ref(node):
            node = node.parent
        return 0

    def release(self, node: Node, mark: int, tier: ComponentTier) -> None:
        if tier is not self.device:
            _release_down_to(node, mark, tier)
            return
        while node.parent is not None and tier.dec_lock_ref(node):
            node = node.parent

    def touch(self, node: Node, now: int) -> None:
        self._touch(node, now)
        while node.parent is not None and node.device[FULL].value is None:
            node = node.parent
        # The path may leave the device before it ends: the device counts the use at its own last node.
        self._touch(node, now)

    def free_on_device(self, pages: Slots) -> None:
        self.device_pages.free(pages)

    def _touch(self, node: Node, now: int) -> None:
        if node.last_access_time[FULL] < now:
            node.last_access_time[FULL] = now
            self.device.queue.touch(node)


def _acquire_one(node: Node, tier: ComponentTier) -> int:
    """Lock the node alone. The mark is where it begins, so that the release finds all parts of it after a split."""
    if tier.data(node).value is None:
        return node.end
    tier.inc_lock_ref(node)
    return node.start


def _release_down_to(node: Node, mark: int, tier: ComponentTier) -> None:
    while node.parent is not None and node.end > mark:
        tier.dec_lock_ref(node)
        node = node.parent
