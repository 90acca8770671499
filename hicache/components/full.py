"""FULL: KV of full-attention layers, one slot per token. It decides which nodes exist."""

from __future__ import annotations

from typing import ClassVar

from hicache.components.base import Insertion, Stretch, TreeComponent, Validator, holder_at
from hicache.components.holding import Holding
from hicache.tree.node import Node
from hicache.tree.policies import ORDERS, Order, falls_when_touched
from hicache.types import Component, Slots


class FullComponent(TreeComponent):
    """Every node that is reachable holds it on one tier; leaves go in the order of the configured policy."""

    name: ClassVar[str] = Component.FULL.value

    def order(self) -> Order:
        return ORDERS[self.config.policy]

    def renews(self) -> bool:
        return falls_when_touched(self.config.policy)

    def is_candidate(self, node: Node) -> bool:
        return not node.holders[0] and not node.locks[self.index] and node.values[self.index] is not None

    def is_host_candidate(self, node: Node) -> bool:
        if node.holders[1] or node.values[self.host.place] is None or any(node.locks[self._components :]):
            return False
        return node.values[self.index] is not None or not any(node.locks)

    def validator(self, places: tuple[int, ...]) -> Validator:
        return holder_at(places)

    def needed(self, node: Node) -> list[Stretch]:
        return [(step, step.pages) for step in node.path()]

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        return False

    def cuts(self, start: int, insertion: Insertion) -> list[int]:
        return []

    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        return None

    def overlap(self, node: Node, insertion: Insertion) -> None:
        pages = node.values[self.index]
        if pages is None:
            # What is on the host alone takes the fresh pages; a load of it keeps its own for those who read them.
            pages = insertion.part(node).copy()
            self.device.hold(node, pages)
        else:
            insertion.prefix_end = node.end
        insertion.met.append(pages)

    def arrive(self, node: Node, pages: Slots) -> bool:
        parent = node.parent
        if parent is None or (parent.parent is not None and parent.values[self.index] is None):
            return False
        self.device.hold(node, pages)
        return True

    def commit(self, node: Node, insertion: Insertion) -> None:
        node.touched[self.index] = insertion.now
        self.device.hold(node, insertion.part(node).copy())

    def split(self, upper: Node, lower: Node) -> None:
        for holding in self.holdings:
            holding.divide(upper, lower)
        upper.touched[self.index] = lower.touched[self.index]
        # On the device the receipts stay with the lower part, which the upper part counts as one locked child.
        upper.locks[self.index] = 1 if lower.locks[self.index] else 0
        for holding in self.holdings[1:]:
            upper.locks[holding.place] = lower.locks[holding.place]

    def acquire(self, node: Node, holding: Holding) -> int:
        if holding is not self.device:
            return _acquire_one(node, holding)
        while node.parent is not None and holding.pin(node):
            node = node.parent
        return 0

    def release(self, node: Node, mark: int, holding: Holding) -> None:
        if holding is not self.device:
            _release_down_to(node, mark, holding)
            return
        while node.parent is not None and holding.unpin(node):
            node = node.parent

    def touch(self, node: Node, now: int) -> None:
        self._touch(node, now)
        while node.parent is not None and node.values[self.index] is None:
            node = node.parent
        # Of a path that leaves the device, each tier learns of the use at its own end.
        self._touch(node, now)

    def _touch(self, node: Node, now: int) -> None:
        if node.touched[self.index] < now:
            node.touched[self.index] = now
            self.device.queue.touched(node)

    def give_back(self, pages: Slots) -> None:
        self.pools.free(pages)


def _acquire_one(node: Node, holding: Holding) -> int:
    """Lock the node alone; the mark is where it begins, so that the release finds all parts of it."""
    if node.values[holding.place] is None:
        return node.end
    holding.pin(node)
    return node.start


def _release_down_to(node: Node, mark: int, holding: Holding) -> None:
    while node.parent is not None and node.end > mark:
        holding.unpin(node)
        node = node.parent
