"""StorageWorker: straight between backend and host pools; what a backend does wrong is a miss, and is logged once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest

from hicache.pools.host import HostPools
from hicache.stacks import pool_specs
from hicache.storage.base import Pieces, PoolQuery, StorageBackend
from hicache.storage.memory import MemoryStorage
from hicache.tests.tiers.stored_cache import stored_config
from hicache.tiers.storage_io import StorageWorker
from hicache.transfer.job import PageBatch, PrefixQuery, StorageJob
from hicache.types import Pool, Slots, StorageKind

CONFIG = stored_config()
KEYS = ("kv/a", "kv/b")


class Broken(MemoryStorage):
    """Raises, or answers with another number of answers, or with too much."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        raise OSError("the disk is gone")

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return [True]

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return 99


@pytest.fixture
def bank() -> HostPools:
    return HostPools(CONFIG, pool_specs(CONFIG))


def worker_of(bank: HostPools, backend: StorageBackend) -> StorageWorker:
    worker = StorageWorker(bank, frozenset(Pool))
    worker.attach(backend)
    return worker


def job_of(kind: StorageKind, *batches: PageBatch | PrefixQuery) -> StorageJob:
    return StorageJob(1, kind, batches, ())


def pages_of(*pages: int) -> Slots:
    return np.array(pages, dtype=np.int64)


@pytest.mark.parametrize("pool", Pool)
def test_bytes_go_out_and_come_back(bank: HostPools, pool: Pool) -> None:
    buffers = bank.buffers[pool]
    unit = buffers.page_size
    slots = np.arange(unit, 3 * unit)
    rows = np.random.default_rng(0).integers(0, 256, (len(slots), buffers.spec.slot_bytes), dtype=np.uint8)
    for layer in range(buffers.spec.layers):
        buffers.write(slots, layer, rows + np.uint8(layer))
    worker = worker_of(bank, MemoryStorage("scope", {}))
    out = PageBatch(pool, KEYS, pages_of(1, 2))
    back = PageBatch(pool, (*KEYS, "kv/absent"), pages_of(4, 3, 5))
    assert worker.work(job_of(StorageKind.STORE, out), out) == 2, "both pages are kept"
    assert worker.work(job_of(StorageKind.PREFETCH, back), back) == 2, "STORE-3: up to the page that is absent"
    for layer in range(buffers.spec.layers):
        for source, target in ((1, 4), (2, 3)):
            old = buffers.read(np.arange(source * unit, (source + 1) * unit), layer)
            new = buffers.read(np.arange(target * unit, (target + 1) * unit), layer)
            assert (old == new).all(), f"HOST-7: page {source} came back as {target}, layer {layer}"


def test_what_a_backend_does_wrong_is_a_miss(bank: HostPools, caplog: pytest.LogCaptureFixture) -> None:
    worker = worker_of(bank, Broken("scope", {}))
    batch = PageBatch(Pool.KV, KEYS, pages_of(1, 2))
    query = PrefixQuery(KEYS, ())
    with caplog.at_level(logging.ERROR):
        assert worker.work(job_of(StorageKind.PREFETCH, batch), batch) == 0, "FLOW-4: what raises brings nothing"
        assert worker.work(job_of(StorageKind.STORE, batch), batch) == 0, "one answer for two keys is none"
    assert len(caplog.records) == 1, "it is logged once"
    assert worker.work(job_of(StorageKind.QUERY, query), query) == 2, "no more can be used than was asked about"


def test_a_detached_worker_answers_nothing(bank: HostPools) -> None:
    worker = worker_of(bank, MemoryStorage("scope", {}))
    worker.detach()
    batch = PageBatch(Pool.KV, KEYS, pages_of(1, 2))
    assert not worker.is_attached, "nothing is attached"
    assert worker.work(job_of(StorageKind.STORE, batch), batch) == 0, "and nothing is kept"
    assert not worker.clear(), "nor cleared"
