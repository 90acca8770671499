"""One rank has a smaller capacity than the others: all ranks use the smallest one."""

from __future__ import annotations

from dataclasses import replace

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import Component

from .configurations import ALL_MESHES, configuration, on_meshes
from .random_workload import RandomWorkload
from .rank_actions import NEEDS


def smaller(config: CacheConfig) -> CacheConfig:
    """A configuration with a page of FULL less on the device, and a page of each paged component less on the host."""
    assert config.host is not None, f"{config.name} has a host tier"
    page = config.page_size
    device = {name: tokens - page * (name == Component.FULL) for name, tokens in config.capacity_tokens.items()}
    below = config.host.capacity_tokens
    host = {name: tokens - page * (name != Component.MAMBA) for name, tokens in below.items()}
    return replace(config, capacity_tokens=device, host=replace(config.host, capacity_tokens=host))


def run_with_less(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig
) -> tuple[dict[str, int], dict[str, int]]:
    """The capacities of both tiers, after a workload that evicts; the drivers compare the victims."""
    is_last = world.rank == mesh_of(world.topology).ranks - 1
    driver = RankDriver(adapter_type, smaller(config) if is_last else config, world)
    snapshot = driver.snapshot()
    assert snapshot.host is not None, f"{config.name} has a host tier"
    RandomWorkload(driver, 5).run(15)
    tiers = (snapshot.pools, snapshot.host.pools)
    device, host = ({name: pool.capacity for name, pool in pools.items()} for pools in tiers)
    return device, host


@clause("RANK-7", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_capacities_and_victims_are_those_of_the_smallest_rank(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type, stop_policy=None)
    results = launch.values(run_with_less, adapter_type, config)
    least = smaller(config)
    assert least.host is not None, f"{config.name} has a host tier"
    expected = (dict(least.capacity_tokens), dict(least.host.capacity_tokens))
    assert results == [expected] * launch.mesh.ranks, (
        f"RANK-7: capacities of device and host: expected {expected} on each rank, got {results}"
    )
