"""DeviceEvictor and HostEvictor: allocate pages, and evict the least valuable data where they are short."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from hicache.components.base import TreeComponent
from hicache.components.component_tree import ComponentTree
from hicache.pools.device import DevicePools
from hicache.pools.host import HostPools
from hicache.tree.node import FULL, Node
from hicache.types import Slots


@dataclass(frozen=True, slots=True)
class Evicted:
    """How many victims were evicted, and how many stayed: not backed up, or locked meanwhile."""

    victims: int
    refused: int


class HostEvictor:
    """Evicts host data. What is locked on the host stays, and so does FULL of a node that has a child there."""

    def __init__(self, tree: ComponentTree, pools: HostPools) -> None:
        self._tree = tree
        self._pools = pools

    def evict(self, component: str, pages: int) -> int:
        """Drop at least so many host pages of a component, or all that can be; returns the number of victims."""
        target = self._tree.by_name[component]
        victims = 0
        while target.host.dropped_pages < pages and (node := target.host.queue.pop()) is not None:
            self._tree.evict_host(node, target)
            victims += 1
        return victims

    def free_pages(self, component: str) -> int:
        """Pages of a component that are free now."""
        return self._pools.allocators[component].free_pages

    def available(self, component: str) -> int:
        """An upper bound of what can be free: it also counts unlocked pages above a locked node, which stay."""
        return self.free_pages(component) + self._tree.by_name[component].host.evictable_pages

    def allocate(self, pages: Mapping[str, int]) -> Mapping[str, Slots] | None:
        """Allocate pages of each component; None, with nothing taken, when they are not available. May have evicted."""
        if any(self.available(component) < count for component, count in pages.items()):
            return None
        for component, count in pages.items():
            missing = count - self._pools.allocators[component].free_pages
            if missing > 0:
                self.evict(component, missing)
                self._free_dropped()
        return self._pools.take(pages)

    def free(self, component: str, pages: Slots) -> None:
        """Free pages that `allocate` gave and no node took."""
        self._pools.free(component, pages)

    def _free_dropped(self) -> None:
        """Free what was dropped on the host alone: the device may be in the middle of an eviction."""
        for component in self._tree.components:
            component.host.free_dropped()


class BacksUp(Protocol):
    """What an eviction with write_back needs of the BackupManager."""

    def lacking(self, node: Node) -> list[TreeComponent]:
        """The components of a node that are on the device, not on the host, and not being copied to the host."""

    def enqueue(self, node: Node) -> bool:
        """Queue the copy of all that is lacking; False when that is not possible now."""

    def is_hopeless(self, node: Node) -> bool:
        """Whether the node can never be backed up."""

    def finish_now(self) -> None:
        """Wait for the copies that wait or run, and give nodes those that arrived."""


class DeviceEvictor:
    """Evicts device data. What has a host copy stays in the tree.

    `backups`: given with write_back, where what has no host copy must be backed up before it is evicted.
    """

    def __init__(self, tree: ComponentTree, pools: DevicePools, backups: BacksUp | None) -> None:
        self._tree = tree
        self._pools = pools
        self._backups = backups

    def ensure_available(self, pages: Mapping[str, int]) -> bool:
        """Evict until so many pages of each component are free; False when they cannot be."""
        allocators, by_name = self._pools.allocators, self._tree.by_name
        for component, count in pages.items():
            if allocators[component].free_pages + by_name[component].device.evictable_pages < count:
                return False
        for component, count in pages.items():
            missing = count - allocators[component].free_pages
            if missing > 0:
                self.evict(component, missing)
                self._tree.free_dropped()
        return all(allocators[component].free_pages >= count for component, count in pages.items())

    def evict(self, component: str, pages: int) -> Evicted:
        """Drop at least so many pages of a component, or all that can be."""
        target = self._tree.by_name[component]
        if self._backups is not None:
            return _WriteBackEviction(self._tree, self._backups, target, pages).run()
        victims = 0
        while target.device.dropped_pages < pages and (node := target.device.next_victim()) is not None:
            self._tree.evict(node, target)
            victims += 1
        return Evicted(victims, 0)


class _WriteBackEviction:
    """One eviction in which what has no host copy is backed up first, in rounds of one merged job each."""

    def __init__(self, tree: ComponentTree, backups: BacksUp, target: TreeComponent, pages: int) -> None:
        self._tree = tree
        self._backups = backups
        self._target = target
        self._pages = pages
        self._victims = 0
        # Also what waits for its backup, until it is evicted.
        self._refused: dict[int, Node] = {}

    def run(self) -> Evicted:
        try:
            while self._target.device.dropped_pages < self._pages and self._round():
                pass
        finally:
            # Also when another rank failed: what was not evicted stays a candidate.
            for node in self._refused.values():
                self._target.device.queue.offer(node)
        return Evicted(self._victims, len(self._refused))

    def _round(self) -> bool:
        """Evict victims, until a parent becomes a candidate or the host is full; False when there was none."""
        before = self._victims + len(self._refused)
        leaving: list[Node] = []
        leaving_children: Counter[int] = Counter()
        coming = 0
        while self._target.device.dropped_pages + coming < self._pages and (node := self._next()) is not None:
            if not self._needs_backup(node):
                self._evict(node)
            elif self._backups.enqueue(node):
                leaving.append(node)
                self._refused[id(node)] = node
                value = node.device[self._target.index].value
                coming += 0 if value is None else len(value)
                leaving_children[id(node.parent)] += 1
                if node.parent is not None and node.parent.device_children == leaving_children[id(node.parent)]:
                    break
            elif leaving:
                # The host makes room of copies once they have come: try again after this round.
                self._target.device.queue.offer(node)
                break
            else:
                self._refused[id(node)] = node
        self._finish(leaving)
        return self._victims + len(self._refused) > before

    def _finish(self, leaving: list[Node]) -> None:
        """Wait for the backups of the nodes that leave, and evict those that have their copy."""
        if leaving:
            self._backups.finish_now()
        for node in leaving:
            if node.alive and not self._needs_backup(node) and self._target.is_candidate(node):
                del self._refused[id(node)]
                self._evict(node)

    def _next(self) -> Node | None:
        """The next candidate that was not refused before, and does not wait for its backup."""
        return self._target.device.next_victim(self._refused.keys())

    def _needs_backup(self, node: Node) -> bool:
        """Whether something would be evicted that the host lacks, and could have."""
        is_inner = bool(node.device_children or node.device[FULL].lock_ref)
        first = self._target.index if is_inner else FULL
        is_lacking = any(component.index >= first for component in self._backups.lacking(node))
        return is_lacking and not self._backups.is_hopeless(node)

    def _evict(self, node: Node) -> None:
        stays_in_tree = node.device_children or node.device[FULL].lock_ref or self._tree.is_on_host(node)
        if not stays_in_tree and not self._tree.remove_below(node):
            self._refused[id(node)] = node
            return
        self._tree.evict(node, self._target)
        self._victims += 1
