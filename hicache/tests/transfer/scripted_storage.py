"""Storage jobs, and a StorageWorker over a backend whose answers a test writes down."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import numpy as np

from hicache.pools.host import HostPools
from hicache.stacks import pool_specs
from hicache.storage.base import Pieces, PoolQuery
from hicache.storage.memory import MemoryStorage
from hicache.tests.tiers.stored_cache import stored_config
from hicache.tiers.storage_io import StorageWorker
from hicache.transfer.job import PageBatch, PrefixQuery, StorageJob
from hicache.types import Pool, StorageKind

TIMEOUT_S = 30
"""How long a test waits for another thread before it fails."""


class ScriptedStorage(MemoryStorage):
    """Each call answers with the next of some numbers of pages, once the gate is open.

    `entered`: set when a call has begun. `calls`: the job and the part of each call that has ended, in order.
    """

    def __init__(self, answers: Sequence[int]) -> None:
        super().__init__("scope", {})
        self.gate = Event()
        self.entered = Event()
        self.calls: list[tuple[int, int]] = []
        self._script = list(answers)

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        whole = self._answer(keys)
        return [place < whole for place in range(len(keys))]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self.get(keys, sources, prefix_keys)

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return self._answer(keys)

    def _answer(self, keys: Sequence[str]) -> int:
        self.entered.set()
        assert self.gate.wait(TIMEOUT_S), f"the gate was not opened within {TIMEOUT_S} s"
        _, job, part, _ = keys[0].split("/")
        self.calls.append((int(job), int(part)))
        return self._script.pop(0)


def worker_of(backend: ScriptedStorage) -> StorageWorker:
    """A worker that calls the backend for every pool."""
    config = stored_config()
    worker = StorageWorker(HostPools(config, pool_specs(config)), frozenset(Pool))
    worker.attach(backend)
    return worker


def job_of(number: int, kind: StorageKind, *pages: int) -> StorageJob:
    """A job with a batch of so many pages for each of `pages`. The keys name the job, the part and the page."""
    return StorageJob(number, kind, tuple(_batch_of(f"kv/{number}/{part}", n) for part, n in enumerate(pages)), ())


def query_of(number: int) -> StorageJob:
    """A job that asks about a prefix of two pages."""
    query = PrefixQuery((f"kv/{number}/0/0", f"kv/{number}/0/1"), ())
    return StorageJob(number, StorageKind.QUERY, (query,), ())


def _batch_of(prefix: str, pages: int) -> PageBatch:
    return PageBatch(Pool.KV, tuple(f"{prefix}/{page}" for page in range(pages)), np.arange(1, pages + 1))
