"""A component that the package does not have: scales of quantised KV, which lie at FULL's own slots."""

from __future__ import annotations

from typing import ClassVar

from hicache.components.base import ComponentTier, Insertion, Tail, TreeComponent, Validator
from hicache.tree.eviction import Order, recency_of
from hicache.tree.node import FULL, Node
from hicache.types import Slots

SCALES = "scales"


class ScalesComponent(TreeComponent):
    """A node is valid with its scales. They need no allocation, as they have FULL's page numbers."""

    name: ClassVar[str] = SCALES

    def order(self) -> Order:
        return recency_of(self.index)

    def renews(self) -> bool:
        return False

    def is_candidate(self, node: Node) -> bool:
        return not node.locks[self.index] and node.values[self.index] is not None

    def is_host_candidate(self, node: Node) -> bool:
        return not node.locks[self.host.place] and node.values[self.host.place] is not None

    def validator(self, places: tuple[int, ...]) -> Validator:
        return lambda node: any(node.values[place] is not None for place in places)

    def needed(self, node: Node) -> list[Tail]:
        return [(step, step.pages) for step in node.path()]

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        return False

    def cuts(self, start: int, insertion: Insertion) -> list[int]:
        return []

    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        return None

    def overlap(self, node: Node, insertion: Insertion) -> None:
        """A node that is there keeps what it has."""

    def arrive(self, node: Node, pages: Slots) -> bool:
        self.device.hold(node, pages)
        return True

    def commit(self, node: Node, insertion: Insertion) -> None:
        pages = node.values[FULL]
        assert pages is not None, "FULL commits first"
        self.device.hold(node, pages.copy())

    def split(self, upper: Node, lower: Node) -> None:
        for holding in self.holdings:
            holding.divide(upper, lower)
            upper.locks[holding.place] = lower.locks[holding.place]
            holding.queue.offer(upper)

    def acquire(self, node: Node, holding: ComponentTier) -> int:
        holding.pin(node)
        return 0

    def release(self, node: Node, mark: int, holding: ComponentTier) -> None:
        holding.unpin(node)

    def touch(self, node: Node, now: int) -> None:
        node.touched[self.index] = now

    def give_back(self, pages: Slots) -> None:
        """They go with FULL's slots."""
