"""Landing: lays host pages that storage gave over the tree, as it is by now."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hicache.components.base import TreeComponent
from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.keys import RadixKey
from hicache.tree.node import Node
from hicache.types import Component, EventKind, Slots, Tier


class Landing:
    """One prefix that came.

    `key`: to its end. `start`: pages from the root to where `pages` begin. `pages`: of FULL all from there; of SWA the
    last ones; of MAMBA the state at the end.
    """

    def __init__(self, ensemble: Ensemble, key: RadixKey, start: int, pages: Mapping[str, Slots]) -> None:
        self._ensemble = ensemble
        self._key = key
        self._start = start
        self._pages = pages
        self._end = ensemble.tree.pages_of(key)
        self._window_start = self._end - len(pages.get(Component.SWA, ()))
        self._left = dict(pages)

    def lay(self, now: int) -> Mapping[str, Slots]:
        """Give nodes what they lack on the host, and make those that are not there; returns the pages nobody took."""
        node = self._ensemble.tree.root
        for met in self._ensemble.tree.walk(self._key):
            node = met
            if node.end > self._start:
                for part in self._parted(node):
                    self._offer(part)
        for end in self._leaf_ends(node.end):
            if not self._ensemble.bears_on_host(node):
                break
            node = self._ensemble.tree.attach(node, self._key, end)
            node.created = now
            node.touched = [now] * len(node.touched)
            self._offer(node)
        self._ensemble.settle(node)
        return self._left

    def _parted(self, node: Node) -> list[Node]:
        """The node, cut at the window's start where it takes SWA pages: they are there for a whole node or not."""
        swa = self._ensemble.by_name.get(Component.SWA)
        if swa is None or not node.start < self._window_start < node.end or node.values[swa.host.place] is not None:
            return [node]
        return [self._ensemble.tree.split(node, self._window_start - node.start), node]

    def _leaf_ends(self, start: int) -> list[int]:
        return sorted({end for end in (self._window_start, self._end) if start < end})

    def _offer(self, node: Node) -> None:
        for component in self._ensemble.components:
            part = self._part(component.name, node)
            if part is None:
                continue
            place = component.host.place
            if (
                node.values[place] is None
                and node.arriving[place] is None
                and self._ensemble.has_ground(component, node)
            ):
                component.host.hold(node, part)
                self._left[component.name] = np.setdiff1d(self._left[component.name], part, assume_unique=True)
                self._mark(component, node)

    def _mark(self, component: TreeComponent, node: Node) -> None:
        """Storage has it already; where it may lack what comes before, the node is offered again in its turn."""
        parent = node.parent
        if parent is not None and (parent.parent is None or parent.persisted & 1 << FULL):
            node.persisted |= 1 << component.index
            component.report(Tier.STORAGE, EventKind.STORED, node)

    def _part(self, name: str, node: Node) -> Slots | None:
        """What came of a component for a node, in an array of its own."""
        pages = self._pages.get(name)
        if pages is None:
            return None
        if name == Component.MAMBA:
            return pages.copy() if node.end == self._end else None
        first = self._start if name == Component.FULL else self._window_start
        return pages[node.start - first : node.end - first].copy() if node.start >= first else None
