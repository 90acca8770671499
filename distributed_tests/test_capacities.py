"""Capacities and evictions: all ranks have the smallest capacity of any rank, and evict the same nodes."""

from __future__ import annotations

from dataclasses import replace

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.digest import digest_of
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld, mesh_of
from hicache.types import Component

from .configurations import ALL_MESHES, CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .random_workload import RandomWorkload
from .rank_actions import NEEDS, elements_on_host
from .stored_prompt import prompt_key

ROUNDS = 30
SMALL_PAGES = 10
SMALL_STATES = 4

FAILING_ROUNDS = 25
SHARE_FAILING = 0.4

Capacities = dict[str, dict[str, int]]
"""Capacities by tier and component, in slots."""


Evicted = tuple[int, int, int, int]
"""Victims, refused victims, FULL slots that were freed, FULL slots on the host."""


def on_small_ranks(config: CacheConfig, rank: int, ranks: int) -> CacheConfig:
    """The first rank has a small FULL pool on the device, the last one small other pools; on the host the opposite."""
    assert config.host is not None, f"{config.name} has a host tier"
    rest = [name for name in config.components if name != Component.FULL]
    on_device = {0: [Component.FULL.value], ranks - 1: rest}.get(rank, [])
    on_host = {0: rest, ranks - 1: [Component.FULL.value]}.get(rank, [])
    below = replace(config.host, capacity_tokens={**config.host.capacity_tokens, **_small(config, on_host)})
    return replace(config, capacity_tokens={**config.capacity_tokens, **_small(config, on_device)}, host=below)


def _small(config: CacheConfig, names: list[str]) -> dict[str, int]:
    return {name: SMALL_STATES if name == Component.MAMBA else SMALL_PAGES * config.page_size for name in names}


def capacities(driver: RankDriver) -> Capacities:
    """The capacities that a snapshot shows."""
    snapshot = driver.snapshot()
    assert snapshot.host is not None, f"{driver.config.name} has a host tier"
    tiers = {"device": snapshot.pools, "host": snapshot.host.pools}
    return {tier: {name: pool.capacity for name, pool in sorted(pools.items())} for tier, pools in tiers.items()}


def fills(driver: RankDriver) -> int:
    """The number of pages that can be allocated from an empty cache."""
    taken = []
    while (slots := driver.allocate(driver.config.page_size)) is not None:
        taken.append(slots)
    for slots in taken:
        driver.free(slots)
    return len(taken)


def runs_workload(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig
) -> tuple[Capacities, int, list[str], str]:
    """Capacities, allocatable pages, every event, and the final tree."""
    driver = RankDriver(adapter_type, on_small_ranks(config, world.rank, mesh_of(world.topology).ranks), world)
    found, pages = capacities(driver), fills(driver)
    RandomWorkload(driver, 5).run(ROUNDS)
    return found, pages, [str(event) for event in driver.adapter.events()], digest_of(driver.snapshot()).text


def smallest(config: CacheConfig) -> Capacities:
    """The smallest capacity of any rank."""
    return {tier: _small(config, sorted(config.components)) for tier in ("device", "host")}


@clause("RANK-7", "RANK-1", needs=(*NEEDS, Capability.REQUESTS, Capability.EVENTS))
@on_meshes(TP2, CP2_TP2)
def test_all_ranks_use_the_smallest_capacity_and_evict_the_same(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type, stop_policy=None)
    results = launch.values(runs_workload, adapter_type, config)
    _, _, first, tree = results[0]
    assert any("removed" in event for event in first), "RANK-7: expected evictions in the workload, got none"
    for rank, (found, pages, events, last) in enumerate(results):
        assert found == smallest(config), f"RANK-7: on rank {rank} expected {smallest(config)} slots, got {found}"
        assert pages == SMALL_PAGES, (
            f"RANK-7: on rank {rank} expected {SMALL_PAGES} pages to be allocatable, got {pages}"
        )
        parted = [pair for pair in zip(first, events, strict=False) if pair[0] != pair[1]]
        assert events == first, (
            f"RANK-7: expected the same changes of residency in one order: {len(first)} on rank 0, "
            f"{len(events)} on rank {rank}, the first that differ are {parted[:1]}"
        )
        assert last == tree, f"RANK-1: expected one tree, on rank {rank}:\n{last}\non rank 0:\n{tree}"


def smaller(config: CacheConfig) -> CacheConfig:
    """A configuration with a page of FULL less on the device, and a page of each paged component less on the host."""
    assert config.host is not None, f"{config.name} has a host tier"
    page = config.page_size
    device = {name: tokens - page * (name == Component.FULL) for name, tokens in config.capacity_tokens.items()}
    below = config.host.capacity_tokens
    host = {name: tokens - page * (name != Component.MAMBA) for name, tokens in below.items()}
    return replace(config, capacity_tokens=device, host=replace(config.host, capacity_tokens=host))


def run_with_less(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> Capacities:
    """The capacities of both tiers, after a workload that evicts; the drivers compare the victims."""
    is_last = world.rank == mesh_of(world.topology).ranks - 1
    driver = RankDriver(adapter_type, smaller(config) if is_last else config, world)
    found = capacities(driver)
    RandomWorkload(driver, 5).run(15)
    return found


@clause("RANK-7", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_capacities_and_victims_are_those_of_the_smallest_rank(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type, stop_policy=None)
    results = launch.values(run_with_less, adapter_type, config)
    least = smaller(config)
    assert least.host is not None, f"{config.name} has a host tier"
    expected = {"device": dict(least.capacity_tokens), "host": dict(least.host.capacity_tokens)}
    assert results == [expected] * launch.mesh.ranks, (
        f"RANK-7: capacities of device and host: expected {expected} on each rank, got {results}"
    )


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


def runs_failing_workload(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> tuple[int, str]:
    """Run the workload: the number of nodes in the end, and the tree."""
    driver = RankDriver(adapter_type, config, world)
    driver.failures += 1
    Failing(driver, 6).run(FAILING_ROUNDS)
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
    results = launch.values(runs_failing_workload, adapter_type, config)
    assert results == [results[0]] * len(results), f"RANK-1: expected one tree, got {results}"
    assert results[0][0], "expected nodes in the tree, got none"
