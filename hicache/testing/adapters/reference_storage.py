"""ReferenceStorageVerbs: drives the storage tier of the reference cache, who asks its backend, and its clock."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from hicache.cache import UnifiedRadixCache
from hicache.clock import VirtualClock
from hicache.config import CacheConfig, ExecutorKind, StorageConfig
from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend
from hicache.testing.storage_verbs import PendingStorage, StorageVerbs
from hicache.tiers.fetch import Fetch
from hicache.tiers.storage_tier import StorageTier, StorageWorld
from hicache.transfer.executors.storage_stepped import StepStorage
from hicache.transfer.executors.storage_threaded import ThreadStorage
from hicache.transfer.storage_job import StorageExecutor, StorageJob, StorageWorker
from hicache.types import Key, Pool


class ReferenceWorld:
    """What the storage tier of one cache is handed: time that a test moves, and threads that may be delayed."""

    def __init__(self, config: StorageConfig, longest_pause_s: float) -> None:
        self.clock = VirtualClock()
        self.executor: StorageExecutor | None = None
        self._config = config
        self._longest_pause_s = longest_pause_s
        self._chance = random.Random(0)

    def storage(self) -> StorageWorld:
        """As the cache takes it."""
        return StorageWorld(self._open_backend, self._open_executor, self.clock)

    def _open_backend(self, scope: str) -> StorageBackend:
        return open_backend(self._config.backend, scope, self._config.extra.options)

    def _open_executor(self, worker: StorageWorker) -> StorageExecutor:
        is_stepped = self._config.executor is ExecutorKind.STEPPED
        self.executor = StepStorage(worker) if is_stepped else ThreadStorage(worker, self._pause)
        return self.executor

    def _pause(self) -> None:
        if self._longest_pause_s:
            time.sleep(self._chance.uniform(0, self._longest_pause_s))


class ReferenceStorageVerbs(StorageVerbs):
    """The verbs of storage, over `cache` and what it was handed in `world`."""

    cache: UnifiedRadixCache
    world: ReferenceWorld | None

    def prefetch(self, key: Key) -> Fetch | None:
        return self._storage.prefetch(self.cache.key(key.tokens, key.namespace))

    def check_prefetch(self, ticket: Fetch) -> int | None:
        return self._storage.check(ticket)

    def abort_prefetch(self, ticket: Fetch) -> None:
        self._storage.abort_fetch(ticket)

    def attach_storage(self) -> bool:
        return self._storage.attach()

    def detach_storage(self) -> bool:
        return self._storage.detach()

    def clear_storage(self) -> bool:
        return self._storage.clear()

    def storage_keys(self, pool: Pool, key: Key) -> Sequence[str]:
        names = self._storage.requests.names
        hashes = self.cache.page_hashes(self.cache.key(key.tokens, key.namespace))
        return [f"{names.scope}/{name}" for name in names.keys(pool, hashes)]

    def pending_storage(self) -> Sequence[PendingStorage]:
        return [self._asked(job) for job in self._asking.pending()]

    def advance_storage(self, ticket: int) -> None:
        self._asking.advance(ticket)

    def complete_storage(self, ticket: int) -> None:
        self._asking.wait(ticket)

    def advance_clock(self, seconds: float) -> None:
        assert self.world is not None, "time is that of a storage tier"
        self.world.clock.advance(seconds)

    def _asked(self, job: StorageJob) -> PendingStorage:
        done = len(self._asking.progress(job.number).answers)
        return PendingStorage(job.number, job.kind, len(job.batches), done)

    @property
    def _storage(self) -> StorageTier:
        if self.cache.storage is None:
            raise ValueError(f"{self.cache.config.name} has no storage tier")
        return self.cache.storage

    @property
    def _asking(self) -> StepStorage:
        executor = None if self.world is None else self.world.executor
        if not isinstance(executor, StepStorage):
            raise TypeError(f"storage of {self.cache.config.name} is not asked by the test")
        return executor


def world_of(config: CacheConfig, longest_pause_s: float) -> ReferenceWorld | None:
    """The world of a cache with a storage tier."""
    return None if config.storage is None else ReferenceWorld(config.storage, longest_pause_s)
