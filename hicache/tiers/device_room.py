"""DeviceRoom: device pages for requests and loads, made by evicting; what has a host copy is only demoted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hicache.components.base import TreeComponent
from hicache.components.ensemble import Ensemble
from hicache.components.holding import FULL
from hicache.errors import RankError
from hicache.pools.group import DevicePools
from hicache.tiers.backups import Backups
from hicache.tree.node import Node


@dataclass(frozen=True, slots=True)
class Evicted:
    """How many victims went, and how many stayed because they could not be backed up."""

    victims: int
    refused: int


class DeviceRoom:
    """Evicts device data. `backups`: given where what has no copy must be backed up before it goes (write_back)."""

    def __init__(self, ensemble: Ensemble, pools: DevicePools, backups: Backups | None) -> None:
        self._ensemble = ensemble
        self._pools = pools
        self._backups = backups

    def make(self, pages: Mapping[str, int]) -> bool:
        """Evict until so many pages of each component are free; False, when they cannot be."""
        allocators, by_name = self._pools.allocators, self._ensemble.by_name
        for component, count in pages.items():
            if allocators[component].free_pages + by_name[component].device.evictable_pages < count:
                return False
        for component, count in pages.items():
            missing = count - allocators[component].free_pages
            if missing > 0:
                self.evict(component, missing)
                self._ensemble.flush()
        return all(allocators[component].free_pages >= count for component, count in pages.items())

    def evict(self, component: str, pages: int) -> Evicted:
        """Free at least so many pages of a component, or all that can be. Not flushed."""
        target = self._ensemble.by_name[component]
        if self._backups is not None:
            return _WriteBack(self._ensemble, self._backups, target, pages).run()
        victims = 0
        while target.device.dropped_pages < pages and (node := target.device.queue.pop()) is not None:
            self._ensemble.evict(node, target)
            victims += 1
        return Evicted(victims, 0)


class _WriteBack:
    """One eviction in which what has no copy is backed up first, in rounds of one merged transfer each."""

    def __init__(self, ensemble: Ensemble, backups: Backups, target: TreeComponent, pages: int) -> None:
        self._ensemble = ensemble
        self._backups = backups
        self._target = target
        self._pages = pages
        self._victims = 0
        self._refused: dict[int, Node] = {}

    def run(self) -> Evicted:
        try:
            while self._target.device.dropped_pages < self._pages and self._round():
                pass
        except RankError:
            # The verb ends here, so nobody else does it.
            self._ensemble.flush()
            raise
        finally:
            # Also where another rank is gone: what was not evicted stays a candidate.
            for node in self._refused.values():
                self._target.device.queue.offer(node)
        return Evicted(self._victims, len(self._refused))

    def _round(self) -> bool:
        """Evict the next victims, up to the first whose parent becomes one; False when there was none."""
        before = self._victims + len(self._refused)
        leaving: list[Node] = []
        below: Counter[int] = Counter()
        coming = 0
        while self._target.device.dropped_pages + coming < self._pages and (node := self._next()) is not None:
            held = node.values[self._target.index]
            if not self._needs_copy(node):
                self._go(node)
            elif self._backups.start(node):
                leaving.append(node)
                coming += 0 if held is None else len(held)
                below[id(node.parent)] += 1
                if node.parent is not None and node.parent.holders[0] == below[id(node.parent)]:
                    break
            else:
                self._refused[id(node)] = node
        self._refused |= {id(node): node for node in leaving}
        if leaving:
            self._backups.finish_now()
        for node in leaving:
            if node.alive and not self._needs_copy(node) and self._target.is_candidate(node):
                del self._refused[id(node)]
                self._go(node)
        return self._victims + len(self._refused) > before

    def _next(self) -> Node | None:
        """The next candidate that was not refused before."""
        while (node := self._target.device.queue.pop()) is not None:
            if id(node) not in self._refused:
                return node
        return None

    def _needs_copy(self, node: Node) -> bool:
        """Whether something goes that the host has not, and could have."""
        is_inner = bool(node.holders[0] or node.locks[FULL])
        first = self._target.index if is_inner else FULL
        goes = any(component.index >= first for component in self._backups.lacking(node))
        return goes and not self._backups.is_hopeless(node)

    def _go(self, node: Node) -> None:
        stays_in_tree = node.holders[0] or node.locks[FULL] or self._ensemble.is_on_host(node)
        if not stays_in_tree and not self._ensemble.prune(node):
            self._refused[id(node)] = node
            return
        self._ensemble.evict(node, self._target)
        self._victims += 1
