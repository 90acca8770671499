"""The layers of a load become ready one by one; each stage of a pipeline counts its own layers."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import Pool, TransferKind

from .configurations import PP2_TP2, configuration, on_meshes
from .rank_actions import NEEDS, catch_up, evict_all

Readable = Mapping[Pool, int]
"""The number of ready layers of each pool."""


def reads(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> tuple[list[Readable], Readable]:
    """The ready layers before a load moves and after each layer, and the layers of this stage."""
    driver = RankDriver(adapter_type, config, world)
    key = driver.key(driver.prompt([1, 2, 3]))
    driver.put(key)
    driver.drain()
    evict_all(driver)
    driver.overwrite_free_slots()
    load = driver.load_back(key, driver.match(key))
    assert load is not None, f"HOST-5: expected a load of {driver.aligned(key)} elements that are on the host, got None"
    driver.step()
    readable = [driver.read_ready_layers(load.ticket)]
    while moving := [one for one in driver.pending() if one.kind is TransferKind.LOAD]:
        driver.advance(moving[0].ticket)
        readable.append(driver.read_ready_layers(load.ticket))
    layers = {pool: driver.adapter.layers(pool) for pool in readable[0]}
    catch_up(driver)
    driver.claim(load.ticket)
    driver.end()
    return readable, layers


@clause("HOST-6", "RANK-5", needs=(*NEEDS, Capability.BYTES))
@on_meshes(PP2_TP2)
def test_a_layer_is_ready_when_it_has_moved_on_its_own_stage(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    results = launch.values(reads, adapter_type, configuration(adapter_type, stop_policy=None))
    for rank, (readable, layers) in enumerate(results):
        first, *_, last = readable
        assert not any(first.values()), (
            f"HOST-6: no layer has moved on rank {rank}: expected none to be ready, got {first}"
        )
        assert last == layers, (
            f"HOST-6: all layers have moved on rank {rank}: expected {layers} to be ready, got {last}"
        )
        counts = [sum(step.values()) for step in readable]
        assert len(set(counts)) > 2, (
            f"HOST-6: expected layers to become ready one by one on rank {rank}, got {readable}"
        )
