"""HostInsertion: gives host pages that storage brought to the nodes of the tree."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hicache.components.base import TreeComponent
from hicache.components.component_tree import ComponentTree
from hicache.keys import RadixKey
from hicache.tree.node import FULL, Node
from hicache.types import Component, EventKind, Slots, Tier


class HostInsertion:
    """Inserts host pages from storage into the present tree.

    `key`: to the end of what came. `start`: pages from the root to the anchor. `on_host`: of how many pages past it the
    host has FULL. `pages`: of FULL all that follow; of SWA the last ones; of MAMBA the state at the end.
    """

    def __init__(
        self, tree: ComponentTree, key: RadixKey, start: int, on_host: int, pages: Mapping[str, Slots]
    ) -> None:
        self._tree = tree
        self._key = key
        self._start = start
        self._full_start = start + on_host
        self._pages = pages
        self._end = tree.radix.page_count(key)
        self._window_start = self._end - len(pages.get(Component.SWA, ()))
        self._unused = dict(pages)

    def insert_host(self, now: int) -> Mapping[str, Slots]:
        """Give nodes what they lack on the host, and make those that do not exist; returns the unused pages."""
        node = self._tree.radix.root
        for node in self._tree.radix.walk(self._key):
            if node.end > self._start:
                for part in self._split_at_window(node):
                    self._install(part)
        for end in self._leaf_ends(node.end):
            if not self._tree.can_back_up_child(node):
                break
            node = self._tree.radix.attach(node, self._key, end)
            node.creation_time = now
            node.last_access_time = [now] * len(node.last_access_time)
            self._install(node)
        self._tree.prune_and_requeue(node)
        return self._unused

    def _split_at_window(self, node: Node) -> list[Node]:
        """The node, split at the window's start where it takes SWA pages: a node has them as a whole or not."""
        swa = self._tree.by_name.get(Component.SWA)
        is_inside = node.start < self._window_start < node.end
        if swa is None or not is_inside or node.host[swa.index].value is not None:
            return [node]
        return [self._tree.radix.split(node, self._window_start - node.start), node]

    def _leaf_ends(self, start: int) -> list[int]:
        return sorted({end for end in (self._window_start, self._end) if start < end})

    def _install(self, node: Node) -> None:
        for component in self._tree.components:
            part = self._part(component.name, node)
            data = component.host.data(node)
            if part is None or data.value is not None or data.transfer is not None:
                continue
            if self._tree.can_back_up(component, node):
                component.host.install(node, part)
                self._unused[component.name] = np.setdiff1d(self._unused[component.name], part, assume_unique=True)
                self._mark_stored(component, node)

    def _mark_stored(self, component: TreeComponent, node: Node) -> None:
        """Mark as stored if all before it is, which is FULL of the parent, or FULL of the node for other components.

        Otherwise the StorageWriter writes the node after its parent.
        """
        parent = node.parent
        assert parent is not None, "the root has nothing to store"
        before = node.stored[FULL] if component.index != FULL else parent.is_root or parent.stored[FULL]
        if before:
            node.stored[component.index] = True
            component.report(Tier.STORAGE, EventKind.STORED, node)

    def _part(self, name: str, node: Node) -> Slots | None:
        """What came of a component for a node, in an array of its own."""
        pages = self._pages.get(name)
        if pages is None:
            return None
        if name == Component.MAMBA:
            return pages.copy() if node.end == self._end else None
        first = self._full_start if name == Component.FULL else self._window_start
        return pages[node.start - first : node.end - first].copy() if node.start >= first else None
