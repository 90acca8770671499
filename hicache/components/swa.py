"""SWA: KV of sliding-window layers. Only the last window before a prompt's end is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hicache.components.base import FULL, Insertion, Surroundings, TreeComponent, Validator
from hicache.tree.node import Node
from hicache.tree.policies import Order, recency_of
from hicache.types import Component, Slots


class SwaComponent(TreeComponent):
    """Its pages are partners of FULL pages, and go before them: an inner node without them is a tombstone."""

    name: ClassVar[str] = Component.SWA.value

    def __init__(self, index: int, surroundings: Surroundings) -> None:
        super().__init__(index, surroundings)
        assert self.config.sliding_window_size is not None, "CacheConfig requires a window with SWA"
        self._window_pages = -(-self.config.sliding_window_size // self.config.page_size)

    def order(self) -> Order:
        return recency_of(self.index)

    def renews(self) -> bool:
        return False

    def is_candidate(self, node: Node) -> bool:
        return not node.locks[self.index] and node.values[self.index] is not None

    def validator(self) -> Validator:
        index, window, run = self.index, self._window_pages, 0

        def valid(node: Node) -> bool:
            nonlocal run
            run = run + node.pages if node.values[index] is not None else 0
            return run >= window or run == node.end

        return valid

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        return insertion.window_start >= len(insertion.pages)

    def cuts(self, start: int, insertion: Insertion) -> list[int]:
        # A lock pins whole nodes: the last window gets a node of its own, so that it pins one window.
        live = max(start, insertion.window_start)
        ends = {insertion.window_start, max(live, len(insertion.pages) - self._window_pages)}
        return [end for end in ends if start < end < len(insertion.pages)]

    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        inside = node.start < insertion.window_start < node.end
        return insertion.window_start if inside and node.values[self.index] is None else None

    def overlap(self, node: Node, insertion: Insertion) -> None:
        own, given = node.values[FULL], insertion.part(node)
        if node.values[self.index] is not None or node.start < insertion.window_start or own is None:
            return
        # The node keeps its FULL pages, which others may be reading; only the partners change hands.
        if (given != own).all():
            self.hold(node, self.pools.move_window(given, own))

    def commit(self, node: Node, insertion: Insertion) -> None:
        if node.start < insertion.window_start:
            return
        if node.end > len(insertion.pages) - self._window_pages:
            node.touched[self.index] = insertion.now
        self.hold(node, self.pools.partners(insertion.part(node)))

    def split(self, upper: Node, lower: Node) -> None:
        # Every lock that holds the node holds both parts: receipts mark where their window begins by depth.
        self.divide(upper, lower)
        upper.locks[self.index] = lower.locks[self.index]
        self.queue.offer(upper)

    def acquire(self, node: Node) -> int:
        start = node.end
        for step in self._window(node):
            self.pin(step)
            start = step.start
        return start

    def release(self, node: Node, mark: int) -> None:
        while node.parent is not None and node.end > mark:
            self.unpin(node)
            node = node.parent

    def touch(self, node: Node, now: int) -> None:
        for step in self._window(node):
            step.touched[self.index] = now

    def _window(self, node: Node) -> Iterator[Node]:
        """The unbroken run of nodes with data that ends at `node`, as far back as one window reaches."""
        reached = node.end - self._window_pages
        while node.parent is not None and node.end > reached and node.values[self.index] is not None:
            yield node
            node = node.parent

    def freed_by(self, node: Node) -> Slots:
        pages = node.values[FULL]
        assert pages is not None, f"{self.name}: {node!r} has no FULL pages that its partners belong to"
        return pages

    def give_back(self, pages: Slots) -> None:
        self.pools.free_partners(pages)
