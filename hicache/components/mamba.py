"""MAMBA: one recurrent state for one exact prefix length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from hicache.components.base import Insertion, Stretch, TreeComponent, Validator, holder_at
from hicache.components.holding import Holding
from hicache.tree.node import Node
from hicache.tree.policies import Order, recency_of
from hicache.types import Component, Slots


class MambaComponent(TreeComponent):
    """A node may hold the state at its end. A request never gets the tree's state, but a copy in a slot of its own."""

    name: ClassVar[str] = Component.MAMBA.value

    def order(self) -> Order:
        return recency_of(self.index)

    def renews(self) -> bool:
        return False

    def is_candidate(self, node: Node) -> bool:
        return not node.locks[self.index] and node.values[self.index] is not None

    def is_host_candidate(self, node: Node) -> bool:
        return not node.locks[self.host.place] and node.values[self.host.place] is not None

    def validator(self, places: tuple[int, ...]) -> Validator:
        return holder_at(places)

    def needed(self, node: Node) -> list[Stretch]:
        return [(node, node.pages)]

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        return insertion.state is None

    def cuts(self, start: int, insertion: Insertion) -> list[int]:
        return []

    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        return None

    def overlap(self, node: Node, insertion: Insertion) -> None:
        self._adopt(node, insertion)

    def arrive(self, node: Node, pages: Slots) -> bool:
        if any(higher is None for higher in node.values[: self.index]):
            return False
        self.device.hold(node, pages)
        return True

    def commit(self, node: Node, insertion: Insertion) -> None:
        self._adopt(node, insertion)

    def _adopt(self, node: Node, insertion: Insertion) -> None:
        wanted = node.end == len(insertion.pages) and node.values[self.index] is None
        if insertion.state is None or not wanted or any(higher is None for higher in node.values[: self.index]):
            return
        node.touched[self.index] = insertion.now
        self.device.hold(node, np.array([insertion.state], dtype=np.int64))
        insertion.state_adopted = True

    def split(self, upper: Node, lower: Node) -> None:
        # The state belongs to the end, which is the lower part's.
        upper.persisted &= ~(1 << self.index)

    def acquire(self, node: Node, holding: Holding) -> int:
        if node.values[holding.place] is None:
            return 0
        holding.pin(node)
        return 1

    def release(self, node: Node, mark: int, holding: Holding) -> None:
        if mark:
            holding.unpin(node)

    def touch(self, node: Node, now: int) -> None:
        for step in self._path(node):
            step.touched[self.index] = now

    def reported_blocks(self, digests: list[bytes]) -> list[bytes]:
        return digests[-1:]

    def _path(self, node: Node) -> Iterator[Node]:
        while node.parent is not None:
            yield node
            node = node.parent

    def give_back(self, pages: Slots) -> None:
        self.pools.free_states(pages)
