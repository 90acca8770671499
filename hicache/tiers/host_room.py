"""HostRoom: host pages for what is backed up, made by evicting what is used least."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.components.ensemble import Ensemble
from hicache.pools.host import HostPools
from hicache.types import Slots


class HostRoom:
    """Evicts host data. What is locked on the host, or has a child there, stays."""

    def __init__(self, ensemble: Ensemble, bank: HostPools) -> None:
        self._ensemble = ensemble
        self._bank = bank

    def evict(self, component: str, pages: int) -> int:
        """Free at least so many host pages of a component, or all that can be; returns the victims. Not flushed."""
        target = self._ensemble.by_name[component]
        victims = 0
        while target.host.dropped_pages < pages and (node := target.host.queue.pop()) is not None:
            self._ensemble.evict_host(node, target)
            victims += 1
        return victims

    def available(self, component: str) -> int:
        """Pages of a component that are free, or can be made so."""
        return self._bank.allocators[component].free_pages + self._ensemble.by_name[component].host.evictable_pages

    def take(self, pages: Mapping[str, int]) -> Mapping[str, Slots] | None:
        """So many pages of each component; None, with nothing taken, when they cannot be had."""
        if any(self.available(component) < count for component, count in pages.items()):
            return None
        for component, count in pages.items():
            missing = count - self._bank.allocators[component].free_pages
            if missing > 0:
                self.evict(component, missing)
                self._ensemble.flush_host()
        return self._bank.take(pages)
