"""StorageJobs: makes the jobs that query, read and write pages in storage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from hicache.config import CacheConfig
from hicache.metrics import Counters
from hicache.pools.host import HostPools
from hicache.storage.base import BATCH_PAGES, PoolQuery
from hicache.storage.keys import StorageKeys
from hicache.transfer.job import Answers, PageBatch, PrefixQuery, StorageJob, StoreBatch
from hicache.tree.hashes import prefix_hashes
from hicache.tree.node import Node
from hicache.types import Component, HitPolicy, Pool, Slots, StorageKind

Parts: TypeAlias = tuple[PageBatch | StoreBatch | PrefixQuery, ...]


class StorageJobs:
    """Makes the jobs that query, read and write pages in storage.

    Sidecars follow FULL's pages. With entries of several pages, the last page of each group has an object, under its
    own hash. SWA and MAMBA are needed at the end of a prefix alone. `keys`: the names of objects.
    `prefix_pools`: the pools that a prefix needs without a gap. `tail_pages`: by component, how many of its last pages
    a prefix needs. `tail_pools`: the component of each of those pools. `numbers`: of all jobs of the cache.
    """

    def __init__(self, config: CacheConfig, pools: HostPools, counters: Counters, numbers: Iterator[int]) -> None:
        assert config.storage is not None, "storage jobs need a storage tier"
        self.keys = StorageKeys.of(config)
        self.prefix_pools = pools.pools_of(Component.FULL)
        self.tail_pages = _tail_pages(config)
        self.tail_pools = {pool: name for name in self.tail_pages for pool in pools.pools_of(name)}
        self._pools = pools
        assert config.model is not None, "expected a configuration with a model, which storage needs"
        self._pages_per_entry = {pool.name: pool.pages_per_entry(config.page_size) for pool in config.model.pools}
        self._counters = counters
        self._bytes_per_page = config.key_bytes_per_page
        self._passes_prefix = config.storage.hicache_storage_pass_prefix_keys
        self._numbers = numbers

    def query(self, hashes: Sequence[str], before: Node) -> StorageJob:
        """Ask which prefixes of some pages past the node `before` can be used."""
        pools = [
            PoolQuery(self.page_keys(pool, hashes, before.end), HitPolicy.ALL_PAGES, 0)
            for pool in self.prefix_pools
            if pool != Pool.KV
        ]
        tails = [
            PoolQuery(self.keys.of_pages(pool, hashes), HitPolicy.TRAILING_PAGES, pages)
            for name, pages in self.tail_pages.items()
            for pool in self._pools.pools_of(name)
        ]
        query = PrefixQuery(tuple(self.keys.of_pages(Pool.KV, hashes)), tuple(pools), tuple(tails))
        return self._job(StorageKind.QUERY, (query,), before)

    def usable(self, answers: Answers) -> int:
        """The lengths that a query found, past its node: bit n - 1 is set if a prefix of n pages can be used."""
        found = answers[0] if answers else 0
        return found if self.tail_pools else (1 << found) - 1

    def page_keys(self, pool: str, hashes: Sequence[str], start: int) -> list[str]:
        """A key of a pool for each page from `start` on; for a page without an object that of its KV."""
        keys, objects = self.keys.of_pages(Pool.KV, hashes), self._objects(pool, start)
        keys[objects] = self._object_keys(pool, hashes, objects)
        return keys

    def pages_before_object(self, pool: str, start: int) -> int:
        """How many pages from `start` on have no object of a pool, before the first that has one."""
        group = self._pages_per_entry[pool]
        return group - 1 - start % group

    def _objects(self, pool: str, start: int) -> slice:
        """Which of the pages from `start` on have an object of a pool."""
        return slice(self.pages_before_object(pool, start), None, self._pages_per_entry[pool])

    def _object_keys(self, pool: str, hashes: Sequence[str], objects: slice) -> list[str]:
        return self.keys.of_pages(pool, hashes[objects])

    def read(
        self, hashes: Sequence[str], pages: Mapping[str, Slots], pages_read: Mapping[str, int], before: Node
    ) -> StorageJob:
        """Read a prefix past the node `before` into host pages: pools without gaps first, then the tails.

        `pages`: of each component the last ones of the prefix. `pages_read`: by pool, how many of the first of them
        have come already and are not read again.
        """
        batches: list[PageBatch] = []
        for pool in self.prefix_pools:
            lacking = pages[Component.FULL][pages_read.get(pool, 0) :]
            batches += self._batches(pool, hashes, lacking, before)
        for pool, name in self.tail_pools.items():
            batches += self._batches(pool, hashes, pages[name], before)
        return self._job(StorageKind.PREFETCH, tuple(batches), before)

    def write(self, hashes: Sequence[str], pages: Mapping[str, Slots], before: Node) -> StorageJob:
        """Write the pages of a node below `before`: each batch has BATCH_PAGES pages, with the data of all pools."""
        starts = range(0, len(hashes), BATCH_PAGES)
        batches = [self._store_batch(hashes, pages, begin, before.end) for begin in starts]
        return self._job(StorageKind.STORE, tuple([batch for batch in batches if batch.pools]), before)

    def _store_batch(self, hashes: Sequence[str], pages: Mapping[str, Slots], begin: int, start: int) -> StoreBatch:
        """The pages of one `set`, KV last. The pages of a component are the last ones of the node."""
        batches: list[PageBatch] = []
        for name in reversed(list(pages)):
            first, end = len(hashes) - len(pages[name]), begin + BATCH_PAGES
            own, names = pages[name][max(0, begin - first) : max(0, end - first)], hashes[max(begin, first) : end]
            pools = reversed(self._pools.pools_of(name)) if len(own) else ()
            batches += [self._batch(pool, names, own, start + max(begin, first)) for pool in pools]
        return StoreBatch(tuple(batches))

    def _batch(self, pool: str, hashes: Sequence[str], pages: Slots, start: int) -> PageBatch:
        objects = self._objects(pool, start)
        return PageBatch(pool, tuple(self._object_keys(pool, hashes, objects)), pages, objects)

    def page_bytes(self) -> dict[str, int]:
        """The bytes of a page, by the first segment of the keys of each pool."""
        return {self.keys.shard_of(pool): size for pool, size in self._pools.page_bytes().items()}

    def bytes_of(self, pages: Mapping[str, Slots], end: int) -> int:
        """How many bytes the objects are of some host pages, by component, over all layers and pools.

        `end`: of the prefix whose last pages they are.
        """
        sizes, groups = self._pools.page_bytes(), self._pages_per_entry
        return sum(
            (end // groups[pool] - (end - len(own)) // groups[pool]) * sizes[pool]
            for name, own in pages.items()
            for pool in self._pools.pools_of(name)
        )

    def wanted(self, length: int) -> dict[str, int]:
        """The host pages of each component that a prefix of so many pages needs."""
        return {Component.FULL: length} | {name: min(pages, length) for name, pages in self.tail_pages.items()}

    def _job(self, kind: StorageKind, parts: Parts, before: Node) -> StorageJob:
        return StorageJob(next(self._numbers), kind, parts, self._prefix_keys(before))

    def _prefix_keys(self, node: Node) -> tuple[str, ...]:
        """The KV objects of the pages up to the node's end, for a backend that asks for them."""
        digests = prefix_hashes(node, self._bytes_per_page, self._counters) if self._passes_prefix else []
        return tuple(self.keys.of_pages(Pool.KV, [digest.hex() for digest in digests]))

    def _batches(self, pool: str, hashes: Sequence[str], pages: Slots, before: Node) -> list[PageBatch]:
        """The last pages of a prefix past the node `before`."""
        skipped, size = len(hashes) - len(pages), BATCH_PAGES
        return [
            self._batch(pool, hashes[skipped + n :][:size], pages[n : n + size], before.end + skipped + n)
            for n in range(0, len(pages), size)
        ]


def _tail_pages(config: CacheConfig) -> dict[str, int]:
    tail_pages: dict[str, int] = {}
    if Component.SWA in config.components:
        assert config.sliding_window_size is not None, "CacheConfig requires a window with SWA"
        tail_pages[Component.SWA] = -(-config.sliding_window_size // config.page_size)
    if Component.MAMBA in config.components:
        tail_pages[Component.MAMBA] = 1
    return tail_pages
