"""PageRequests: what a stretch of pages is in storage: the objects of each pool, and the batches that move them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hicache.config import CacheConfig
from hicache.pools.host import HostPools
from hicache.pools.tier import owner_of
from hicache.storage.base import BATCH_PAGES, PoolQuery
from hicache.storage.object_keys import StorageKeys
from hicache.transfer.storage_job import PageBatch, PrefixQuery
from hicache.tree.node import Node
from hicache.types import COMPONENT_POOL, Component, HitPolicy, Pool, Slots

HashesTo = Callable[[Node], list[bytes]]
"""The hashes of all pages from the root to a node's end, in a fresh list."""


class PageRequests:
    """The pools of one cache. Sidecars follow FULL's pages; SWA and MAMBA are needed at the end of a prefix alone."""

    def __init__(self, config: CacheConfig, bank: HostPools, hashes_to: HashesTo) -> None:
        assert config.storage is not None, "pages are asked of a storage tier"
        self.names = StorageKeys.of(config)
        self.prefix_pools = [pool for pool in bank.buffers if owner_of(pool) == Component.FULL]
        self.bank = bank
        self._hashes_to = hashes_to
        self._passes_prefix = config.storage.extra.hicache_storage_pass_prefix_keys
        self.tail_pages: dict[str, int] = {}
        if Component.SWA in config.components:
            assert config.sliding_window_size is not None, "CacheConfig requires a window with SWA"
            self.tail_pages[Component.SWA] = -(-config.sliding_window_size // config.page_size)
        if Component.MAMBA in config.components:
            self.tail_pages[Component.MAMBA] = 1

    def query(self, hashes: Sequence[str]) -> PrefixQuery:
        """How far a prefix with these page hashes is there."""
        pools = [
            PoolQuery(self.names.keys(pool, hashes), HitPolicy.ALL_PAGES, 0)
            for pool in self.prefix_pools
            if pool is not Pool.KV
        ]
        pools += [
            PoolQuery(self.names.keys(COMPONENT_POOL[name], hashes), HitPolicy.TRAILING_PAGES, pages)
            for name, pages in self.tail_pages.items()
        ]
        return PrefixQuery(tuple(self.names.keys(Pool.KV, hashes)), tuple(pools))

    def prefix_keys(self, node: Node) -> tuple[str, ...]:
        """The objects of the pages up to a node's end, where the backend is to be told, in a fresh tuple."""
        digests = self._hashes_to(node) if self._passes_prefix else []
        return tuple(self.names.keys(Pool.KV, [digest.hex() for digest in digests]))

    def bytes_of(self, pages: Mapping[str, Slots]) -> int:
        """How many bytes some pages are, by component, over all layers and pools."""
        by_page = {name: sum(map(self.bank.page_bytes, self._pools_of(name))) for name in pages}
        return sum(len(own) * by_page[name] for name, own in pages.items())

    def wanted(self, length: int) -> dict[str, int]:
        """The host pages of each component that a prefix of so many pages needs."""
        return {Component.FULL: length} | {name: min(pages, length) for name, pages in self.tail_pages.items()}

    def to_fetch(
        self, hashes: Sequence[str], pages: Mapping[str, Slots], whole: Mapping[Pool, int]
    ) -> tuple[PageBatch, ...]:
        """The batches that bring a prefix: what has no gaps first and from where it is whole, then the tails."""
        full = pages[Component.FULL]
        batches: list[PageBatch] = []
        for pool in self.prefix_pools:
            first = whole.get(pool, 0)
            batches += self._batches(pool, hashes[first:], full[first:])
        for name in self.tail_pages:
            batches += self._batches(COMPONENT_POOL[name], hashes[len(hashes) - len(pages[name]) :], pages[name])
        return tuple(batches)

    def to_persist(self, hashes: Sequence[str], pages: Mapping[str, Slots]) -> tuple[PageBatch, ...]:
        """The batches that keep the pages of a node: KV last, so that what has KV has the rest."""
        batches: list[PageBatch] = []
        for name in reversed(list(pages)):
            for pool in reversed(self._pools_of(name)):
                batches += self._batches(pool, hashes[len(hashes) - len(pages[name]) :], pages[name])
        return tuple(batches)

    def _pools_of(self, name: str) -> list[Pool]:
        return [pool for pool in self.bank.buffers if owner_of(pool) == name]

    def _batches(self, pool: Pool, hashes: Sequence[str], pages: Slots) -> list[PageBatch]:
        keys = self.names.keys(pool, hashes)
        firsts = range(0, len(keys), BATCH_PAGES)
        return [
            PageBatch(pool, tuple(keys[first : first + BATCH_PAGES]), pages[first : first + BATCH_PAGES])
            for first in firsts
        ]
