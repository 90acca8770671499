"""With write_back a victim is backed up within the eviction: it has a copy if the backup succeeded on every rank."""

from __future__ import annotations

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.digest import digest_of
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import Component

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .random_workload import RandomWorkload
from .rank_actions import NEEDS, elements_on_host
from .stored_prompt import prompt_key

ROUNDS = 25
SHARE_FAILING = 0.4

Evicted = tuple[int, int, int, int]
"""Victims, refused victims, FULL slots that were freed, FULL slots on the host."""


def evicts(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[Evicted, Evicted]]:
    """For each rank on which a backup fails: the results of an eviction, and of the next one."""
    driver = RankDriver(adapter_type, config, world)
    found = []
    for failing in range(mesh_of(world.topology).ranks):
        driver.put(prompt_key(driver, (1, 2)))
        if driver.rank == failing:
            driver.adapter.fail_waits(1)
        results = []
        for _ in range(2):
            result = driver.evict(Component.FULL, 1)
            driver.compare("evict")
            results.append((result.victims, result.refused, result.freed[Component.FULL], elements_on_host(driver)))
        found.append((results[0], results[1]))
        driver.reset()
    driver.end()
    return found


class Failing(RandomWorkload):
    """A workload in which backups that an eviction waits for fail, different ones on each rank."""

    def _move(self) -> None:
        super()._move()
        self._driver.adapter.fail_waits(int(self._pace.random() < SHARE_FAILING))


def runs_workload(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> tuple[int, str]:
    """Run the workload: the number of nodes in the end, and the tree."""
    driver = RankDriver(adapter_type, config, world)
    driver.failures += 1
    Failing(driver, 6).run(ROUNDS)
    snapshot = driver.snapshot()
    return len(snapshot.nodes), digest_of(snapshot).text


@clause("RANK-1", "RANK-7", needs=NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_a_victim_that_one_rank_could_not_back_up_stays_on_all_ranks(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type, write_policy=WritePolicy.WRITE_BACK, stop_policy=None)
    size = 2 * config.page_size
    expected = ((0, 1, 0, 0), (1, 0, size, size))
    for rank, found in enumerate(launch.values(evicts, adapter_type, config)):
        for failing, results in enumerate(found):
            assert results == expected, (
                f"RANK-7: the first copy failed on rank {failing}: expected victims, refused, slots freed and slots on "
                f"the host of two evictions {expected}, on rank {rank} {results}"
            )


@clause("RANK-1", "RANK-7", needs=(*NEEDS, Capability.REQUESTS))
@on_meshes(TP2, PP2_TP2)
def test_ranks_whose_copies_fail_under_pressure_hold_one_tree(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, write_policy=WritePolicy.WRITE_BACK, stop_policy=None)
    results = launch.values(runs_workload, adapter_type, config)
    assert results == [results[0]] * len(results), f"RANK-1: expected one tree, got {results}"
    assert results[0][0], "expected nodes in the tree, got none"
