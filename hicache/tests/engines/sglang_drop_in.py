"""SglangDropIn: the reference as SGLang's radix cache, driven through SGLang's own interface."""

from __future__ import annotations

from typing import Any

from hicache.engines.sglang.adapter import DEVICE, PARTIAL_LOCKS, Sglang0523
from hicache.integrations.sglang_radix_cache import drop_in_class
from hicache.testing.adapter import CacheAdapter


class SglangDropIn(Sglang0523):
    """SGLang 0.5.23 with the tree of the reference, on the device. Its nodes are not shown."""

    capabilities = DEVICE | PARTIAL_LOCKS
    departures = frozenset({"INS-3"})  # a request without a state inserts nothing

    snapshot = CacheAdapter.snapshot

    def cache_type(self) -> Any:
        return drop_in_class()

    def count_victims(self, component: str) -> int:
        # Victims cannot be counted: 1 stands for any number of them.
        return int(self.pools.free_lists[component].available_size() < self.config.capacity_tokens[component])
