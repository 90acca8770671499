"""StorageRequests: what goes out last comes in first, in batches that no backend finds too large."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hicache.pools.host import HostPools
from hicache.stacks import pool_specs
from hicache.storage.base import BATCH_PAGES
from hicache.tests.tiers.stored_cache import stored_config
from hicache.tiers.storage_io import StorageRequests
from hicache.tree.node import Node, NodeShape
from hicache.types import SHARED, Component, HitPolicy, Pool

FULL, SWA, MAMBA = (component.value for component in Component)
HASHES = [f"{number:064x}" for number in range(300)]


def one_page(_: Node) -> list[bytes]:
    return [b"\x01" * 32]


def requests(*, passes_prefix: bool = False) -> StorageRequests:
    config = stored_config()
    assert config.storage is not None, "it has a storage tier"
    extra = replace(config.storage.extra, hicache_storage_pass_prefix_keys=passes_prefix)
    config = replace(config, sliding_window_size=7, storage=replace(config.storage, extra=extra))
    return StorageRequests(config, HostPools(config, pool_specs(config)), one_page)


def test_a_query_names_what_each_pool_needs() -> None:
    query = requests().query(HASHES[:2])
    assert [key.rpartition("/")[2] for key in query.keys] == HASHES[:2], "KV by the hash of each page"
    needs = [(pool.keys[0].partition(".")[0], pool.policy, pool.trailing_pages) for pool in query.pools]
    assert needs == [
        ("indexer", HitPolicy.ALL_PAGES, 0),
        ("swa", HitPolicy.TRAILING_PAGES, 3),
        ("mamba", HitPolicy.TRAILING_PAGES, 1),
    ], "STORE-2: all of the indexer's, the last window (7 tokens, pages of 3) and one state"


def test_a_fetch_reads_kv_first_and_tails_last() -> None:
    length = BATCH_PAGES + 5
    pages = {FULL: np.arange(length), SWA: np.arange(3), MAMBA: np.arange(1)}
    batches = requests().to_fetch(HASHES[:length], pages, {})
    sizes = [(batch.pool, len(batch.keys)) for batch in batches]
    assert sizes == [
        (Pool.KV, BATCH_PAGES),
        (Pool.KV, 5),
        (Pool.INDEXER, BATCH_PAGES),
        (Pool.INDEXER, 5),
        (Pool.SWA, 3),
        (Pool.MAMBA, 1),
    ], "FETCH-5: sidecars after KV is whole, in batches of at most 128"
    tails = [batch.keys[0].rpartition("/")[2] for batch in batches[-2:]]
    assert tails == [HASHES[length - 3], HASHES[length - 1]], "the tails end where the prefix does"


def test_what_has_come_is_not_read_twice() -> None:
    pages = {FULL: np.arange(6), SWA: np.arange(3), MAMBA: np.arange(1)}
    batches = requests().to_fetch(HASHES[:6], pages, {Pool.KV: 6, Pool.INDEXER: 4})
    sizes = [(batch.pool, batch.pages.tolist()) for batch in batches]
    assert sizes == [(Pool.INDEXER, [4, 5]), (Pool.SWA, [0, 1, 2]), (Pool.MAMBA, [0])], "from where each is whole"


def test_what_has_its_kv_in_storage_has_the_rest() -> None:
    pages = {FULL: np.arange(2), SWA: np.arange(2), MAMBA: np.arange(1)}
    pools = [batch.pool for batch in requests().to_persist(HASHES[:2], pages)]
    assert pools == [Pool.MAMBA, Pool.SWA, Pool.INDEXER, Pool.KV], "KV goes last"


def test_the_backend_is_told_of_the_prefix_only_when_it_is_asked_for() -> None:
    node = Node(None, b"", SHARED, 0, NodeShape(3, 2))
    assert requests().prefix_keys(node) == (), "CONF-3: off by default"
    told = requests(passes_prefix=True).prefix_keys(node)
    assert [key.rpartition("/")[2] for key in told] == ["01" * 32], "FETCH-9: the KV objects before"
