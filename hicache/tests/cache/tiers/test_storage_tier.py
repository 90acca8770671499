"""The storage tier: the objects of a job, in order; a worker whose backend may fail; and when a prefetch stops."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from hicache.cache import UnifiedRadixCache
from hicache.clock import VirtualClock
from hicache.keys import chain_seed, hash_pages
from hicache.metrics import Counters
from hicache.parallel.agree import ALONE
from hicache.pools.host import HostPools
from hicache.runtime import Runtime
from hicache.stacks import pool_specs
from hicache.storage.base import BATCH_PAGES, Pieces, PoolQuery, StorageBackend
from hicache.storage.memory import MemoryStorage
from hicache.tests.cache.pools.two_tiers import pages_of, stored_config
from hicache.tiers.prefetch import PrefetchStopPolicy
from hicache.tiers.storage_jobs import StorageJobs
from hicache.tiers.storage_worker import StorageWorker
from hicache.transfer.job import NOT_STARTED, PageBatch, PrefixQuery, Progress, StorageJob, StoreBatch
from hicache.tree.node import Node, NodeShape
from hicache.types import SHARED, Component, HitPolicy, Pool, StopPolicy, StorageKind

FULL, SWA, MAMBA = (component.value for component in Component)
CONFIG = stored_config()
HASHES = [f"{number:064x}" for number in range(300)]
SHAPE = NodeShape(components=3, has_host=True)
ROOT = Node(None, b"", SHARED, 0, SHAPE)
KEYS = ("kv/a", "kv/b")


def requests(*, passes_prefix: bool = False) -> StorageJobs:
    """Of a cache with a window of three pages."""
    assert CONFIG.storage is not None, "the configuration has a storage tier"
    storage = replace(CONFIG.storage, hicache_storage_pass_prefix_keys=passes_prefix)
    config = replace(CONFIG, sliding_window_size=7, storage=storage)
    return StorageJobs(config, HostPools(config, pool_specs(config)), Counters(), count(1))


def batches_of(job: StorageJob) -> list[PageBatch]:
    """The parts of a job that reads or writes pages."""
    batches = [part for part in job.parts if isinstance(part, PageBatch)]
    assert len(batches) == len(job.parts), f"a {job.kind.value} job has batches of pages alone, got {job.parts}"
    return batches


def stores_of(job: StorageJob) -> list[StoreBatch]:
    """The parts of a job that writes pages."""
    return [part for part in job.parts if isinstance(part, StoreBatch)]


def hash_of(key: str) -> str:
    """The hash of the page that an object is of."""
    return key.rpartition("/")[2]


# StorageJobs.


def test_a_query_names_what_each_pool_needs() -> None:
    job = requests().query(HASHES[:2], ROOT)
    (query,) = job.parts
    assert job.kind is StorageKind.QUERY, f"a job that queries, got {job.kind}"
    assert isinstance(query, PrefixQuery), f"a query is its only part, got {query}"
    assert [hash_of(key) for key in query.keys] == HASHES[:2], "KV by the hash of each page"
    pools = [*query.pools, *query.tails]
    needs = [(pool.keys[0].partition(".")[0], pool.policy, pool.trailing_pages) for pool in pools]
    assert needs == [
        ("indexer", HitPolicy.ALL_PAGES, 0),
        ("swa", HitPolicy.TRAILING_PAGES, 3),
        ("mamba", HitPolicy.TRAILING_PAGES, 1),
    ], f"STORE-2: all pages of the indexer, the last window (7 tokens, pages of 3) and one state, got {needs}"
    assert (len(query.tails), job.bits) == (2, 2), f"two pools are needed at the end alone, got {query.tails}"


def test_a_fetch_reads_kv_first_and_tails_last() -> None:
    length = BATCH_PAGES + 5
    pages = {FULL: np.arange(length), SWA: np.arange(3), MAMBA: np.arange(1)}
    job = requests().read(HASHES[:length], pages, {}, ROOT)
    batches = batches_of(job)
    assert job.kind is StorageKind.PREFETCH, f"a job that reads, got {job.kind}"
    sizes = [(batch.pool, len(batch.keys)) for batch in batches]
    assert sizes == [
        (Pool.KV, BATCH_PAGES),
        (Pool.KV, 5),
        (Pool.INDEXER, BATCH_PAGES),
        (Pool.INDEXER, 5),
        (Pool.SWA, 3),
        (Pool.MAMBA, 1),
    ], f"FETCH-5: sidecars after KV is whole, in batches of at most 128, got {sizes}"
    tails = [hash_of(batch.keys[0]) for batch in batches[-2:]]
    assert tails == [HASHES[length - 3], HASHES[length - 1]], "the tails end where the prefix does"


def test_what_has_come_is_not_read_twice() -> None:
    pages = {FULL: np.arange(6), SWA: np.arange(3), MAMBA: np.arange(1)}
    batches = batches_of(requests().read(HASHES[:6], pages, {Pool.KV: 6, Pool.INDEXER: 4}, ROOT))
    parts = [(batch.pool, batch.pages.tolist()) for batch in batches]
    expected = [(Pool.INDEXER, [4, 5]), (Pool.SWA, [0, 1, 2]), (Pool.MAMBA, [0])]
    assert parts == expected, f"each pool without gaps from its first page that has not come, {expected}, got {parts}"


def test_what_has_its_kv_in_storage_has_the_rest() -> None:
    pages = {FULL: np.arange(2), SWA: np.arange(2), MAMBA: np.arange(1)}
    job = requests().write(HASHES[:2], pages, ROOT)
    assert job.kind is StorageKind.STORE, f"a job that writes, got {job.kind}"
    (batch,) = job.parts
    assert isinstance(batch, StoreBatch), f"one set writes all pools of a node, got {batch}"
    pools = [own.pool for own in batch.pools]
    assert pools == [Pool.MAMBA, Pool.SWA, Pool.INDEXER, Pool.KV], f"KV is written last, got {pools}"


def test_a_long_node_is_written_with_what_all_pools_have_of_each_batch() -> None:
    length, hashes = BATCH_PAGES + 5, HASHES[: BATCH_PAGES + 5]
    pages = {FULL: np.arange(length), SWA: np.arange(7), MAMBA: np.arange(1)}
    job = requests().write(hashes, pages, ROOT)
    found = [[(own.pool, len(own.keys), own.pages.tolist()) for own in part.pools] for part in stores_of(job)]
    full = np.arange(length).tolist()
    kv = [full[:BATCH_PAGES], full[BATCH_PAGES:]]
    assert found == [
        [(Pool.SWA, 2, [0, 1]), *((pool, BATCH_PAGES, kv[0]) for pool in (Pool.INDEXER, Pool.KV))],
        [(Pool.MAMBA, 1, [0]), (Pool.SWA, 5, [2, 3, 4, 5, 6]), *((pool, 5, kv[1]) for pool in (Pool.INDEXER, Pool.KV))],
    ], f"the pages of a component are the last ones of the node, got {found}"
    for part in stores_of(job):
        for own in part.pools:
            last = [hash_of(key) for key in own.keys][-1]
            assert last in {hashes[BATCH_PAGES - 1], hashes[-1]}, f"{own.pool}: the key of another page, {last}"


def test_what_storage_lacks_of_a_long_node_may_be_its_state_alone() -> None:
    job = requests().write(HASHES, {MAMBA: np.arange(1)}, ROOT)
    found = [(own.pool, [hash_of(key) for key in own.keys]) for part in stores_of(job) for own in part.pools]
    assert found == [(Pool.MAMBA, [HASHES[-1]])], f"one state at the end of 300 pages, got {found}"


def test_the_backend_is_told_of_the_prefix_only_when_it_is_asked_for() -> None:
    page = b"\x01" * CONFIG.key_bytes_per_page
    node = Node(ROOT, page, SHARED, 1, SHAPE)
    (digest,) = hash_pages(page, len(page), chain_seed(SHARED))
    pages = {FULL: np.arange(1), SWA: np.arange(1), MAMBA: np.arange(1)}
    for passes_prefix, expected in ((False, []), (True, [digest.hex()])):
        made = requests(passes_prefix=passes_prefix)
        hashes = HASHES[:1]
        jobs = [made.query(hashes, node), made.read(hashes, pages, {}, node), made.write(hashes, pages, node)]
        for job in jobs:
            told = [hash_of(key) for key in job.prefix_keys]
            assert told == expected, f"CONF-3, FETCH-9: {job.kind.value} names the KV objects before, got {told}"


def test_each_job_has_a_number_of_its_own() -> None:
    made, pages = requests(), {FULL: np.arange(1), SWA: np.arange(1), MAMBA: np.arange(1)}
    jobs = [made.query(HASHES[:1], ROOT), made.write(HASHES[:1], pages, ROOT), made.query(HASHES[:1], ROOT)]
    assert [job.number for job in jobs] == [1, 2, 3], "reads and writes are numbered together, in order"


# StorageWorker.


class Broken(MemoryStorage):
    """Raises, or gives another number of answers, or too high a number."""

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        raise OSError("the disk is gone")

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return [True]

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return 99


@pytest.fixture
def pools() -> HostPools:
    return HostPools(CONFIG, pool_specs(CONFIG))


def worker_of(pools: HostPools, backend: StorageBackend) -> StorageWorker:
    worker = StorageWorker(pools, frozenset(Pool))
    worker.attach(backend)
    return worker


def answer(worker: StorageWorker, kind: StorageKind, part: PageBatch | StoreBatch | PrefixQuery) -> int:
    """What the worker answers to a job of one part, which ends with that part."""
    progress = worker.step(StorageJob(1, kind, (part,), ()), NOT_STARTED)
    assert progress == Progress(1, progress.answers, has_ended=True), f"the job has ended, got {progress}"
    return progress.answers[0]


@pytest.mark.parametrize("pool", Pool)
def test_bytes_go_out_and_come_back(pools: HostPools, pool: str) -> None:
    buffers = pools.buffers[pool]
    unit = buffers.page_size
    slots = np.arange(unit, 3 * unit)
    rows = np.random.default_rng(0).integers(0, 256, (len(slots), buffers.spec.slot_bytes), dtype=np.uint8)
    for layer in range(buffers.spec.layers):
        buffers.write(slots, layer, rows + np.uint8(layer))
    worker = worker_of(pools, MemoryStorage("scope", {}))
    written = StoreBatch((PageBatch(pool, KEYS, pages_of(1, 2), slice(None)),))
    read = PageBatch(pool, (*KEYS, "kv/absent"), pages_of(4, 3, 5), slice(None))
    assert answer(worker, StorageKind.STORE, written) == 2, "both pages are stored"
    assert answer(worker, StorageKind.PREFETCH, read) == 2, "STORE-3: up to the page that is absent"
    for layer in range(buffers.spec.layers):
        for source, target in ((1, 4), (2, 3)):
            old = buffers.read(np.arange(source * unit, (source + 1) * unit), layer)
            new = buffers.read(np.arange(target * unit, (target + 1) * unit), layer)
            assert (old == new).all(), f"HOST-7: page {source} came back as {target}, layer {layer}"


class Recorded(MemoryStorage):
    """Records the keys of each call of `set`, and refuses those of a pool."""

    def __init__(self, refused: str = "none") -> None:
        super().__init__("scope", {})
        self.sets: list[tuple[str, ...]] = []
        self._refused = refused

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        self.sets.append(tuple(keys))
        answers = super().set(keys, sources, prefix_keys)
        return [done and not key.startswith(self._refused) for key, done in zip(keys, answers, strict=True)]


NODE = StoreBatch(
    (
        PageBatch(Pool.MAMBA, ("mamba/b",), pages_of(1), slice(None)),
        PageBatch(Pool.KV, KEYS, pages_of(1, 2), slice(None)),
    )
)


def test_one_set_writes_all_pools_of_a_node(pools: HostPools) -> None:
    backend = Recorded()
    worker = worker_of(pools, backend)
    assert answer(worker, StorageKind.STORE, NODE) == 3, "all pages are stored"
    assert backend.sets == [("mamba/b", *KEYS)], f"one call with the pages of all pools, got {backend.sets}"
    assert answer(worker_of(pools, Recorded("kv")), StorageKind.STORE, NODE) == 1, "the state alone, as it comes first"
    assert answer(worker_of(pools, Recorded("mamba")), StorageKind.STORE, NODE) == 0, "the first page was refused"


def test_a_rank_writes_its_own_pools_of_a_node(pools: HostPools) -> None:
    for written, keys in ((Pool.KV, [KEYS]), (Pool.MAMBA, [("mamba/b",)]), (Pool.SWA, [])):
        backend = Recorded()
        worker = StorageWorker(pools, frozenset({written}))
        worker.attach(backend)
        assert answer(worker, StorageKind.STORE, NODE) == 3, "RANK-6: the others are written by another rank"
        assert backend.sets == keys, f"RANK-6: {written} is written here: expected {keys}, got {backend.sets}"


def test_what_a_backend_does_wrong_is_a_miss(pools: HostPools, caplog: pytest.LogCaptureFixture) -> None:
    worker = worker_of(pools, Broken("scope", {}))
    batch = PageBatch(Pool.KV, KEYS, pages_of(1, 2), slice(None))
    with caplog.at_level(logging.ERROR):
        assert answer(worker, StorageKind.PREFETCH, batch) == 0, "FLOW-4: a call that raises brings nothing"
        assert answer(worker, StorageKind.STORE, StoreBatch((batch,))) == 0, "one answer for two keys counts as none"
    assert len(caplog.records) == 1, f"only the first error is logged, got {caplog.messages}"
    query = PrefixQuery(KEYS, (), ())
    assert answer(worker, StorageKind.QUERY, query) == 0, "STORE-12: 99 of 2 pages is invalid"
    assert worker.errors == 3, f"STORE-12: three calls raised or gave no answer, counted are {worker.errors}"


@pytest.mark.parametrize(
    ("there", "lengths", "errors"),
    [([True, False], 0b01, 0), ([False, True], 0b10, 0), ([True], 0, 1), ([1, 1], 0, 1), (True, 0, 1)],
)
def test_the_lengths_that_end_with_a_state_are_a_set(
    pools: HostPools, there: object, lengths: int, errors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStorage, "exists", lambda *_: len(KEYS))
    monkeypatch.setattr(MemoryStorage, "has", lambda *_: there)
    worker = worker_of(pools, MemoryStorage("scope", {}))
    query = PrefixQuery(KEYS, (), (PoolQuery(KEYS, HitPolicy.TRAILING_PAGES, 1),))
    found = answer(worker, StorageKind.QUERY, query)
    assert (found, worker.errors) == (lengths, errors), f"FETCH-7, STORE-12: expected {lengths:b}, got {found:b}"


class Unclosable(MemoryStorage):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("a file is held")


def test_a_backend_that_cannot_be_closed_is_gone_all_the_same(pools: HostPools) -> None:
    worker = worker_of(pools, Unclosable("scope", {}))
    worker.detach()
    assert (worker.is_attached, worker.errors) == (False, 1), "it is detached, and the error is counted"


def test_an_abandoned_backend_is_closed_once(pools: HostPools) -> None:
    worker = worker_of(pools, Unclosable("scope", {}))
    close, again = worker.disown(), worker.disown()
    assert (worker.is_attached, worker.errors) == (False, 0), "FLOW-13: it is not called any more, and not closed yet"
    close()
    again()
    assert worker.errors == 1, "FLOW-13: expected it to be closed once, and the error of its end counted"


class Closable(MemoryStorage):
    """Counts its ends."""

    ends = 0

    def close(self) -> None:
        self.ends += 1


def test_an_abandoned_backend_whose_calls_have_ended_is_closed_with_the_cache() -> None:
    backend, config = Closable("scope", {}), stored_config(StopPolicy.WAIT_COMPLETE)
    cache = UnifiedRadixCache.open(config, replace(Runtime.of(config), open_backend=lambda _: backend))
    assert cache.storage is not None, "it has a storage tier"
    cache.storage.disown()
    cache.close()
    assert backend.ends == 1, f"FLOW-13: it is in no call: expected one close, got {backend.ends}"


def test_a_detached_worker_answers_nothing(pools: HostPools) -> None:
    worker = worker_of(pools, MemoryStorage("scope", {}))
    worker.detach()
    batch = PageBatch(Pool.KV, KEYS, pages_of(1, 2), slice(None))
    assert not worker.is_attached, "the worker has no backend"
    assert answer(worker, StorageKind.STORE, StoreBatch((batch,))) == 0, "nothing is stored"
    assert not worker.clear(), "nothing is cleared"


# PrefetchStopPolicy.


def stop_policy(policy: StopPolicy, clock: VirtualClock) -> PrefetchStopPolicy:
    return PrefetchStopPolicy(stored_config(policy), clock, ALONE)


def test_best_effort_waits_not_at_all_and_wait_complete_to_the_end() -> None:
    clock = VirtualClock()
    clock.advance(1e6)
    found = {
        policy: (made.may_cut, made.has_deadlines) for policy in StopPolicy for made in [stop_policy(policy, clock)]
    }
    assert found == {
        StopPolicy.BEST_EFFORT: (True, False),
        StopPolicy.WAIT_COMPLETE: (False, False),
        StopPolicy.TIMEOUT: (True, True),
    }, f"FETCH-3: whether it may end early, and by the clock: got {found}"


def test_a_timeout_grows_with_the_pages_and_stops_at_the_cap() -> None:
    clock = VirtualClock()
    clock.advance(5.0)
    timed = stop_policy(StopPolicy.TIMEOUT, clock)
    assert timed.deadline_s(2) == 5.0 + 1.0 + 2 * 3.0, "FETCH-3: base + pages * per page (3 tokens at 1 s each)"
    assert timed.deadline_s(1_000_000) == 5.0 + 10.0, "FLOW-11: the cap"
    clock.advance(6.9)
    assert timed.agreed([12.0, 11.0], "") == [1, 0], "before the one deadline, and after the other"
    clock.advance(0.1)
    assert timed.agreed([12.0], "") == [0], "at the deadline"
