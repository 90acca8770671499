"""A prefetch that all ranks abort, while storage on one rank is ahead of the others, leaves nothing held."""

from __future__ import annotations

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import StorageKind

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import STORAGE_NEEDS
from .stored_prompt import (
    PROMPT,
    advance_batches,
    ask_for_pages,
    begin,
    brought,
    put_in_storage,
    slots_held_by_prefetches,
    taken_on_host,
)

Left = tuple[str, dict[str, int], int]
"""The way of the abort, host slots that are taken after a drain, and pages that another prefetch brought."""


def aborts_queries(driver: RankDriver, ahead: int) -> None:
    """Abort when one rank has the answer to its query."""
    ticket = begin(driver)
    driver.step()
    if driver.rank == ahead:
        driver.let_end(StorageKind.QUERY)
    driver.abort_prefetch(ticket)


def aborts_pages(driver: RankDriver, ahead: int) -> None:
    """Abort when one rank has read all pages, the others none."""
    ticket = ask_for_pages(driver)
    if driver.rank == ahead:
        driver.let_end(StorageKind.PREFETCH)
    driver.abort_prefetch(ticket)


def aborts_what_was_stepped(driver: RankDriver, ahead: int) -> None:
    """Abort after a step, when one rank has read all pages, and the others some."""
    ticket = ask_for_pages(driver)
    advance_batches(driver, 1 << 10 if driver.rank == ahead else driver.rank % 2)
    driver.step()
    driver.abort_prefetch(ticket)


def aborts_one_of_two(driver: RankDriver, ahead: int) -> None:
    """Abort two prefetches in the opposite order of one rank's answers."""
    first, second = begin(driver, PROMPT[:2]), begin(driver, (7, 8))
    driver.step()
    if driver.rank == ahead:
        driver.complete_storage(driver.pending_storage()[-1].ticket)
    driver.step()
    driver.abort_prefetch(second)
    driver.step()
    driver.abort_prefetch(first)


WAYS = (aborts_queries, aborts_pages, aborts_what_was_stepped, aborts_one_of_two)


def aborts(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Left]:
    """Abort in each way, each time with another rank ahead; then drain, at a different speed on each rank."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    found = []
    ranks = mesh_of(world.topology).ranks
    for number, way in enumerate(WAYS * 2):
        way(driver, ahead=number % ranks if number < len(WAYS) else ranks - 1 - number % ranks)
        driver.compare("abort")
        if driver.rank % 2:
            driver.let_end(*StorageKind)
        driver.step()
        driver.drain()
        left = slots_held_by_prefetches(driver) | taken_on_host(driver)
        ticket = begin(driver)
        driver.drain()
        found.append((way.__name__, left, brought(driver, ticket)))
        driver.reset()
    driver.end()
    return found


@clause("RANK-1", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_an_aborted_prefetch_leaves_nothing_held(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    for rank, found in enumerate(launch.values(aborts, adapter_type, configuration(adapter_type))):
        for way, left, came in found:
            assert (left, came) == ({}, len(PROMPT)), (
                f"FETCH-7: {way} with one rank ahead: expected every host slot to be free, and {len(PROMPT)} pages "
                f"from another prefetch; on rank {rank} are taken {left}, and {came} pages came"
            )
