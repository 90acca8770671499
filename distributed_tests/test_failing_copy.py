"""A transfer between device and host that fails on one rank fails on all ranks, at the same part."""

from __future__ import annotations

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.host_verbs import PendingTransfer
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import TransferKind, TransferPhase

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import NEEDS, elements_on_host, evict_all
from .stored_prompt import prompt_key

SEVERAL = ((1, 2), (3, 4), (5, 6))
"""Prompts whose backups are one transfer."""


def pending(driver: RankDriver, kind: TransferKind) -> PendingTransfer:
    found = [one for one in driver.pending() if one.kind is kind]
    assert len(found) == 1, f"FLOW-4: expected one pending {kind.value}, got {found}"
    return found[0]


def end(driver: RankDriver, kind: TransferKind, failing: int, parts_done: int) -> None:
    """A transfer fails on one rank after so many parts, and completes on the others."""
    driver.failures += 1
    if driver.rank == failing:
        driver.fail(pending(driver, kind).ticket, parts_done)
    else:
        driver.complete(pending(driver, kind).ticket)
    driver.step()


def backs_up(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig
) -> list[tuple[int, int, int, int]]:
    """For each failing rank: parts of the backup, parts done there, pages on the host then, and after a retry."""
    driver = RankDriver(adapter_type, config, world)
    found = []
    for failing in range(mesh_of(world.topology).ranks):
        for pages in SEVERAL:
            driver.put(prompt_key(driver, pages))
        driver.step()
        parts = pending(driver, TransferKind.BACKUP).parts
        done = failing % parts
        end(driver, TransferKind.BACKUP, failing, done)
        came = elements_on_host(driver) // config.page_size
        for pages in SEVERAL:
            driver.match(prompt_key(driver, pages))
        driver.drain()
        found.append((parts, done, came, elements_on_host(driver) // config.page_size))
        driver.reset()
    driver.end()
    return found


def loads(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[str, bool, int]]:
    """For each failing rank: the phase of a load, whether it delivered, and the device hit after a retry."""
    driver = RankDriver(adapter_type, config, world)
    key = prompt_key(driver)
    driver.put(key)
    driver.drain()
    found = []
    for failing in range(mesh_of(world.topology).ranks):
        evict_all(driver)
        load = driver.load_back(key, driver.match(key))
        assert load is not None, f"HOST-5: expected a load of {driver.aligned(key)} elements on the host, got None"
        driver.step()
        end(driver, TransferKind.LOAD, failing, 0)
        phase = driver.load_phase(load.ticket)
        has_delivered = driver.claim(load.ticket) is not None
        again = driver.load(key)
        found.append((phase.value, has_delivered, len(again.device_indices)))
    driver.end()
    return found


@clause("RANK-1", "RANK-4", needs=NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_a_backup_counts_as_far_as_on_the_rank_where_it_failed(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    results = launch.values(backs_up, adapter_type, configuration(adapter_type, stop_policy=None))
    for rank, found in enumerate(results):
        for failing, (parts, done, came, afterwards) in enumerate(found):
            assert parts == len(SEVERAL), f"expected one transfer of {len(SEVERAL)} parts, got {parts}"
            expected = sum(len(pages) for pages in SEVERAL[:done]), sum(map(len, SEVERAL))
            assert (came, afterwards) == expected, (
                f"RANK-1: rank {failing} copied {done} of {parts} parts: expected pages on the host then and when it "
                f"was tried again {expected}, on rank {rank} are {(came, afterwards)}"
            )


@clause("RANK-1", "RANK-4", needs=NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_a_load_that_failed_on_one_rank_has_failed_on_all(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=None)
    expected = (TransferPhase.FAILED.value, False, 4 * config.page_size)
    for rank, found in enumerate(launch.values(loads, adapter_type, config)):
        for failing, came in enumerate(found):
            assert came == expected, (
                f"RANK-1: the load failed on rank {failing}: expected its phase, whether it delivered, and what is on "
                f"the device when it was tried again {expected}, on rank {rank} {came}"
            )
