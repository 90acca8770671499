"""FULL: KV of full-attention layers, one slot per token. It decides which nodes exist."""

from __future__ import annotations

from typing import ClassVar

from hicache.components.base import Insertion, TreeComponent, Validator
from hicache.tree.node import Node
from hicache.tree.policies import ORDERS, Order, falls_when_touched
from hicache.types import Component, Slots


class FullComponent(TreeComponent):
    """Every node that is reachable holds it; leaves go in the order of the configured policy."""

    name: ClassVar[str] = Component.FULL.value

    def order(self) -> Order:
        return ORDERS[self.config.policy]

    def renews(self) -> bool:
        return falls_when_touched(self.config.policy)

    def is_candidate(self, node: Node) -> bool:
        return not node.children and not node.locks[self.index] and node.values[self.index] is not None

    def validator(self) -> Validator:
        index = self.index
        return lambda node: node.values[index] is not None

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        return False

    def cuts(self, start: int, insertion: Insertion) -> list[int]:
        return []

    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        return None

    def overlap(self, node: Node, insertion: Insertion) -> None:
        pages = node.values[self.index]
        assert pages is not None, f"{self.name}: {node!r} holds nothing"
        insertion.met.append(pages)

    def commit(self, node: Node, insertion: Insertion) -> None:
        node.touched[self.index] = insertion.now
        self.hold(node, insertion.part(node).copy())

    def split(self, upper: Node, lower: Node) -> None:
        # The receipts stay with the lower part; the upper part counts it as one locked child.
        self.divide(upper, lower)
        upper.locks[self.index] = 1 if lower.locks[self.index] else 0

    def acquire(self, node: Node) -> int:
        while node.parent is not None and self.pin(node):
            node = node.parent
        return 0

    def release(self, node: Node, mark: int) -> None:
        while node.parent is not None and self.unpin(node):
            node = node.parent

    def touch(self, node: Node, now: int) -> None:
        if node.touched[self.index] < now:
            node.touched[self.index] = now
            self.queue.touched(node)

    def give_back(self, pages: Slots) -> None:
        self.pools.free(pages)
