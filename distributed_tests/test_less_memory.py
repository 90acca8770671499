"""A rank has less memory than the others: all ranks use the smallest capacity, and evict the same nodes."""

from __future__ import annotations

from dataclasses import replace

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.digest import digest_of
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import Component

from .configurations import CP2_TP2, TP2, configuration, on_meshes
from .random_workload import RandomWorkload
from .rank_actions import NEEDS

ROUNDS = 30
SMALL_PAGES = 10
SMALL_STATES = 4

Capacities = dict[str, dict[str, int]]
"""Capacities by tier and component, in slots."""


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
