"""SWA: KV of sliding-window layers. Only the last window before a prompt's end is needed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import ClassVar

from hicache.components.base import ComponentTier, Insertion, Tail, TreeComponent, Validator, has_value
from hicache.tree.node import FULL, Node, is_any_locked
from hicache.types import Component, Slots


class SwaComponent(TreeComponent):
    """Its pages are partners of FULL pages and are evicted before them: an inner node without them is a tombstone."""

    name: ClassVar[str] = Component.SWA.value

    @cached_property
    def _window_pages(self) -> int:
        assert self.config.sliding_window_size is not None, "CacheConfig requires a window with SWA"
        return -(-self.config.sliding_window_size // self.config.page_size)

    @cached_property
    def _is_present(self) -> Validator:
        return has_value(self.index, device_only=len(self.tiers) == 1)

    def is_candidate(self, node: Node) -> bool:
        return node.device[self.index].value is not None and not is_any_locked(node.device[self.index :])

    def is_host_candidate(self, node: Node) -> bool:
        return node.host[self.index].value is not None and not is_any_locked(node.host[self.index :])

    def validator(self, *, device_only: bool) -> Validator:
        window, is_present = self._window_pages, has_value(self.index, device_only=device_only)
        run = end = 0

        def valid(node: Node) -> bool:
            nonlocal run, end
            run = run + node.end - end if is_present(node) else 0
            end = node.end
            return run >= window or run == end

        return valid

    def needed(self, node: Node) -> list[Tail]:
        tails: list[Tail] = []
        window_start = max(0, node.end - self._window_pages)
        while node.parent is not None and node.end > window_start:
            tails.append((node, node.end - max(node.start, window_start)))
            node = node.parent
        return tails

    def refuses_leaf(self, start: int, insertion: Insertion) -> bool:
        return insertion.window_start >= len(insertion.pages)

    def leaf_cuts(self, start: int, insertion: Insertion) -> list[int]:
        # A lock holds whole nodes: the last window gets a node of its own, so that a lock holds one window.
        live = max(start, insertion.window_start)
        ends = {insertion.window_start, max(live, len(insertion.pages) - self._window_pages)}
        return [end for end in ends if start < end < len(insertion.pages)]

    def cut_before_overlap(self, node: Node, insertion: Insertion) -> int | None:
        is_inside = node.start < insertion.window_start < node.end
        return insertion.window_start if is_inside and node.device[self.index].value is None else None

    def overlap(self, node: Node, insertion: Insertion) -> None:
        own, given, data = node.device[FULL].value, insertion.part(node), node.device[self.index]
        if data.value is not None or node.start < insertion.window_start or own is None:
            return
        if (given == own).all():
            self._install_partners(node, own)
        elif (given != own).all() and data.transfer is None:
            # The node keeps its FULL pages, which others may be reading. Only the partners move.
            self.device.install(node, self.device_pages.move_partners(given, own))

    def commit(self, node: Node, insertion: Insertion) -> None:
        if node.start < insertion.window_start:
            return
        if node.end > len(insertion.pages) - self._window_pages:
            node.last_access_time[self.index] = insertion.now
        self.device.install(node, self.device_pages.partners(insertion.part(node)))

    def install_loaded(self, node: Node, pages: Slots) -> bool:
        full = node.device[FULL].value
        if full is None:
            return False
        partners = self.device_pages.partners(full)
        if not partners.any():
            self.device_pages.pair(full, pages)
        elif (partners != pages).any():
            return False
        self.device.install(node, pages)
        return True

    def split(self, upper: Node, lower: Node) -> None:
        # A lock on the node is now one on each part. Its release climbs to the depth in its receipt, and finds both.
        upper.last_access_time[self.index] = lower.last_access_time[self.index]
        for tier in self.tiers:
            tier.split(upper, lower)
            tier.data(upper).lock_ref = tier.data(lower).lock_ref
            tier.queue.offer(upper)

    def acquire(self, node: Node, tier: ComponentTier) -> int:
        start = node.end
        for step in self._window(node, lambda step: tier.data(step).value is not None):
            tier.inc_lock_ref(step)
            start = step.start
        return start

    def release(self, node: Node, mark: int, tier: ComponentTier) -> None:
        while node.parent is not None and node.end > mark:
            tier.dec_lock_ref(node)
            node = node.parent

    def touch(self, node: Node, now: int) -> None:
        for step in self._window(node, self._is_present):
            step.last_access_time[self.index] = now

    def pages_to_free(self, node: Node) -> Slots:
        pages = node.device[FULL].value
        assert pages is not None, f"{self.name}: {node!r} has no FULL pages that its partners belong to"
        return pages

    def free_on_device(self, pages: Slots) -> None:
        self.device_pages.free_partners(pages)

    def _install_partners(self, node: Node, own: Slots) -> None:
        """The node took the caller's FULL pages in this insert, and their partners with them."""
        partners = self.device_pages.partners(own)
        if partners.all():
            self.device.install(node, partners)

    def _window(self, node: Node, is_present: Validator) -> Iterator[Node]:
        """The unbroken run of nodes with data that ends at `node`, as far back as one window reaches."""
        window_start = node.end - self._window_pages
        while node.parent is not None and node.end > window_start and is_present(node):
            yield node
            node = node.parent
