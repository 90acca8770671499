"""A rank has fewer objects in storage than the others: all ranks prefetch what every rank can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.testing.stored import restorable_pages
from hicache.types import Pool

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import STORAGE_NEEDS
from .stored_prompt import (
    PROMPT,
    Presence,
    begin,
    brought,
    objects,
    pools,
    presence,
    put_in_storage,
    store,
    window_pages,
)

Loss = tuple[int, Pool, int]
"""A rank, and a page of one pool that it lacks."""

Fetched = tuple[str, int, Presence, int]
"""A description of the loss, pages that came, what this rank can read, and pages of a window."""


def losses(own_pools: Sequence[Pool], ranks: int) -> Iterator[tuple[Loss, ...]]:
    """Each page of each pool on one rank, and pages on two ranks at once."""
    for number, (pool, page) in enumerate(product(own_pools, range(len(PROMPT)))):
        yield ((number % ranks, pool, page),)
    for pool in own_pools[1:]:
        yield (0, Pool.KV, 3), (ranks - 1, pool, 2)
        yield (0, pool, 3), (ranks - 1, pool, 2)


def prefetches(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Fetched]:
    """Prefetch the prompt once for each loss, which happens before the query or after it."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    whole = dict(store(driver).objects)
    found: list[Fetched] = []
    for number, lost in enumerate(losses(pools(driver), mesh_of(world.topology).ranks)):
        own = [objects(driver, pool)[page] for rank, pool, page in lost if rank == driver.rank]
        is_known = number % 2 == 0
        if is_known:
            for name in own:
                del store(driver).objects[name]
        ticket = begin(driver)
        store(driver).corrupt(own)
        there = presence(driver)
        driver.drain()
        words = ", ".join(f"{pool.value} page {page} on rank {rank}" for rank, pool, page in lost)
        found.append(
            (f"{words}, {'known' if is_known else 'not known'}", brought(driver, ticket), there, window_pages(driver))
        )
        driver.reset()
        store(driver).restore(whole)
    driver.end()
    return found


def on_all(several: Sequence[Presence]) -> Presence:
    """What every rank can read."""
    return {pool: [all(pages) for pages in zip(*(one[pool] for one in several), strict=True)] for pool in several[0]}


@clause("RANK-1", "RANK-4", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_all_ranks_prefetch_the_prefix_that_every_rank_can_read(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    results = launch.values(prefetches, adapter_type, configuration(adapter_type))
    for case in zip(*results, strict=True):
        words, _, _, window = case[0]
        expected = restorable_pages(on_all([there for _, _, there, _ in case]), window)
        came = [pages for _, pages, _, _ in case]
        assert came == [expected] * len(case), (
            f"FETCH-7: {words} was lost: expected {expected} pages on every rank, by rank came {came}"
        )
