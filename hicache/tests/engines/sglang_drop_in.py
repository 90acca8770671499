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
        tree = self.cache.reference.tree
        index, nodes = tree.by_name[component].index, [tree.radix.root]
        for node in nodes:
            nodes.extend(node.children.values())
        return sum(node.device[index].value is not None for node in nodes)
