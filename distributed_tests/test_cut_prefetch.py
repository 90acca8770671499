"""A prefetch that is cut before its end: all ranks cut it at the same check, and keep the pages that all have."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import StopPolicy, StorageKind

from .configurations import ALL_MESHES, CP2_TP2, TP2, configuration, full_alone, on_meshes
from .rank_actions import STORAGE_NEEDS
from .stored_prompt import (
    PROMPT,
    advance_batches,
    ask_for_pages,
    brought,
    prompt_key,
    put_in_storage,
    slots_held_by_prefetches,
)

LONG = tuple(range(1, 301))
"""A prompt whose pages are read in three batches."""

BATCH_PAGES = 128
LATE_S = 1000.0
"""Longer than the timeout of any prefetch."""


def times_out(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[bool, int, int]]:
    """For each rank whose clock alone passes the timeout, with no page read, and with all pages read on every rank.

    Returns whether the prefetch ended at once, and the pages that came in both cases.
    """
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    found = []
    for late in range(mesh_of(world.topology).ranks):
        came = []
        for have_come in (False, True):
            ticket = ask_for_pages(driver)
            assert driver.check_prefetch(ticket) is None, "FETCH-3: no time has passed: expected None"
            if have_come:
                driver.let_end(StorageKind.PREFETCH)
            if driver.rank == late:
                driver.advance_clock(LATE_S)
            tokens = driver.check_prefetch(ticket)
            is_over = tokens is not None
            driver.compare("check")
            if driver.rank != late:
                driver.advance_clock(LATE_S)
            if tokens is None:
                tokens = driver.check_prefetch(ticket)
            assert tokens is not None, (
                "FETCH-3: the timeout has passed on every rank: expected a number of tokens, got None"
            )
            came.append(tokens // config.page_size)
            driver.drain()
            driver.reset()
        found.append((is_over, came[0], came[1]))
    driver.end()
    return found


def cuts_batches(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[int, int]]:
    """For each rank that is one batch ahead of the others: pages that came of a long prompt, host slots still held."""
    driver = RankDriver(adapter_type, config, world)
    driver.check_every = 0
    driver.put(prompt_key(driver, LONG))
    driver.drain()
    driver.reset()
    found = []
    for ahead in range(mesh_of(world.topology).ranks):
        ticket = ask_for_pages(driver, LONG)
        batches = advance_batches(driver, 2 if driver.rank == ahead else 1)
        assert batches == len(LONG) // BATCH_PAGES + 1, f"expected a batch for {BATCH_PAGES} pages, got {batches}"
        tokens = driver.check_prefetch(ticket)
        driver.compare("check")
        driver.drain()
        assert tokens is not None, "FETCH-3: best_effort does not wait: expected a number of tokens, got None"
        found.append((tokens // config.page_size, sum(slots_held_by_prefetches(driver).values())))
        reached = len(driver.load(prompt_key(driver, LONG)).device_indices)
        assert reached == tokens, f"FETCH-4: expected a request to find the {tokens} prefetched tokens, got {reached}"
        driver.check()
        driver.reset()
    driver.end()
    return found


def cuts_sidecars(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[int, int]]:
    """For each rank that lacks the last pool when the others have all: pages that came, host slots still held."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    found = []
    for behind in range(mesh_of(world.topology).ranks):
        ticket = ask_for_pages(driver)
        batches = next(one.batches for one in driver.pending_storage() if one.kind is StorageKind.PREFETCH)
        advance_batches(driver, batches - (driver.rank == behind))
        came = brought(driver, ticket)
        driver.drain()
        found.append((came, sum(slots_held_by_prefetches(driver).values())))
        driver.reset()
    driver.end()
    return found


def require_kept(by_rank: Sequence[object], expected: Sequence[tuple[int, int]], how: str) -> None:
    """On every rank the expected pages came each time, and the expected host slots are held."""
    for rank, found in enumerate(by_rank):
        assert found == expected, (
            f"FETCH-7: {how}: expected pages that came, and host slots left over, {expected}; on rank {rank} {found}"
        )


@clause("FETCH-7", "RANK-1", "RANK-4", needs=STORAGE_NEEDS)
@on_meshes(*ALL_MESHES)
def test_the_first_stage_decides_when_a_prefetch_times_out(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    results = launch.values(times_out, adapter_type, configuration(adapter_type, stop_policy=StopPolicy.TIMEOUT))
    for rank, found in enumerate(results):
        for late, outcome in enumerate(found):
            expected = (launch.mesh.topology(late).pp_rank == 0, 0, len(PROMPT))
            assert outcome == expected, (
                f"RANK-4: the time is over on rank {late} alone: expected {expected} (whether the prefetch is over, "
                f"pages when none has come, pages when all have), on rank {rank} {outcome}"
            )


@clause("FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2)
def test_a_cut_prefetch_keeps_the_batches_that_all_ranks_have(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.BEST_EFFORT)
    config = full_alone(config, page_size=1, pages=len(LONG) + 20)
    found = launch.values(cuts_batches, adapter_type, config)
    require_kept(found, [(BATCH_PAGES, 0)] * launch.mesh.ranks, "each rank in turn was a batch ahead")


@clause("FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2)
def test_a_cut_prefetch_keeps_nothing_if_one_rank_lacks_a_pool(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.BEST_EFFORT)
    found = launch.values(cuts_sidecars, adapter_type, config)
    require_kept(found, [(0, 0)] * launch.mesh.ranks, "each rank in turn lacked the last pool")
