"""SWA: KV of sliding-window layers. Only the last window before a prompt's end is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hicache.components.base import Insertion, Stretch, Surroundings, TreeComponent, Validator, holder_at
from hicache.components.holding import FULL, Holding
from hicache.tree.node import Node
from hicache.tree.policies import Order, recency_of
from hicache.types import Component, Slots


class SwaComponent(TreeComponent):
    """Its pages are partners of FULL pages, and go before them: an inner node without them is a tombstone."""

    name: ClassVar[str] = Component.SWA.value

    def __init__(self, index: int, components: int, surroundings: Surroundings) -> None:
        super().__init__(index, components, surroundings)
        assert self.config.sliding_window_size is not None, "CacheConfig requires a window with SWA"
        self._window_pages = -(-self.config.sliding_window_size // self.config.page_size)
        self._holds = holder_at(tuple(holding.place for holding in self.holdings))

    def order(self) -> Order:
        return recency_of(self.index)

    def renews(self) -> bool:
        return False

    def is_candidate(self, node: Node) -> bool:
        return node.values[self.index] is not None and not any(node.locks[self.index : self._components])

    def is_host_candidate(self, node: Node) -> bool:
        return node.values[self.host.place] is not None and not any(node.locks[self.host.place :])

    def validator(self, places: tuple[int, ...]) -> Validator:
        window, holds, run, end = self._window_pages, holder_at(places), 0, 0

        def valid(node: Node) -> bool:
            nonlocal run, end
            run = run + node.end - end if holds(node) else 0
            end = node.end
            return run >= window or run == end

        return valid

    def needed(self, node: Node) -> list[Stretch]:
        stretches: list[Stretch] = []
        reached = max(0, node.end - self._window_pages)
        while node.parent is not None and node.end > reached:
            stretches.append((node, node.end - max(node.start, reached)))
            node = node.parent
        return stretches

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
        if (given == own).all():
            self._take_window(node, own)
        elif (given != own).all() and node.arriving[self.index] is None:
            # The node keeps its FULL pages, which others may be reading; only the partners change hands.
            self.device.hold(node, self.pools.move_window(given, own))

    def _take_window(self, node: Node, own: Slots) -> None:
        """The node took the caller's FULL pages just now, and has their partners with them."""
        partners = self.pools.partners(own)
        if partners.all():
            self.device.hold(node, partners)

    def arrive(self, node: Node, pages: Slots) -> bool:
        full = node.values[FULL]
        if full is None:
            return False
        partners = self.pools.partners(full)
        if not partners.any():
            self.pools.pair(full, pages)
        elif (partners != pages).any():
            return False
        self.device.hold(node, pages)
        return True

    def commit(self, node: Node, insertion: Insertion) -> None:
        if node.start < insertion.window_start:
            return
        if node.end > len(insertion.pages) - self._window_pages:
            node.touched[self.index] = insertion.now
        self.device.hold(node, self.pools.partners(insertion.part(node)))

    def split(self, upper: Node, lower: Node) -> None:
        # Every lock that holds the node holds both parts: receipts mark where their window begins by depth.
        upper.touched[self.index] = lower.touched[self.index]
        for holding in self.holdings:
            holding.divide(upper, lower)
            upper.locks[holding.place] = lower.locks[holding.place]
            holding.queue.offer(upper)

    def acquire(self, node: Node, holding: Holding) -> int:
        start = node.end
        for step in self._window(node, holder_at((holding.place,))):
            holding.pin(step)
            start = step.start
        return start

    def release(self, node: Node, mark: int, holding: Holding) -> None:
        while node.parent is not None and node.end > mark:
            holding.unpin(node)
            node = node.parent

    def touch(self, node: Node, now: int) -> None:
        for step in self._window(node, self._holds):
            step.touched[self.index] = now

    def _window(self, node: Node, holds: Validator) -> Iterator[Node]:
        """The unbroken run of nodes with data that ends at `node`, as far back as one window reaches."""
        reached = node.end - self._window_pages
        while node.parent is not None and node.end > reached and holds(node):
            yield node
            node = node.parent

    def freed_by(self, node: Node) -> Slots:
        pages = node.values[FULL]
        assert pages is not None, f"{self.name}: {node!r} has no FULL pages that its partners belong to"
        return pages

    def give_back(self, pages: Slots) -> None:
        self.pools.free_partners(pages)
