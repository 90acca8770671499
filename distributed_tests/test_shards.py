"""The shard of a rank: its part of each pool, by its coordinates in the mesh, which it alone writes to storage."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.testing.storage.scripted import store_of
from hicache.types import Component, Pool

from .configurations import ALL_MESHES, configuration, on_meshes
from .rank_actions import NEEDS, STORAGE_NEEDS

PROMPT = (1, 2, 3)

DIVIDED = {Pool.KV: Component.FULL, Pool.SWA: Component.SWA, Pool.MAMBA: Component.MAMBA}
"""The pools whose slots a tensor-parallel group divides, and the component of each."""


def measures(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> dict[Pool, tuple[int, int]]:
    """The layers, and the bytes of a slot, of each pool that is divided."""
    driver = RankDriver(adapter_type, config, world)
    pools = [pool for pool, component in DIVIDED.items() if component in config.components]
    found = {pool: (driver.adapter.layers(pool), driver.adapter.slot_bytes(pool)) for pool in pools}
    driver.end()
    return found


def offers(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> dict[str, int]:
    """The KV objects that this rank set in storage, and how often."""
    driver = RankDriver(adapter_type, config, world)
    driver.put(driver.key(driver.prompt(PROMPT)))
    driver.drain()
    store = store_of(driver.config)
    assert store is not None, f"{driver.config.name} keeps its pages where a test can see them"
    offered = Counter(key for call in store.calls if call.verb == "set" for key in call.keys)
    wanted = driver.storage_keys(Pool.KV, driver.key(driver.prompt(PROMPT)))
    driver.end()
    return {key: offered[key] for key in wanted if key in offered}


@clause("RANK-5", needs=(*NEEDS, Capability.BYTES))
@on_meshes(*ALL_MESHES)
def test_every_pool_is_divided_by_the_coordinates_in_the_mesh(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config, mesh = configuration(adapter_type, stop_policy=None), launch.mesh
    results = launch.values(measures, adapter_type, config)
    alone = adapter_type(config)
    for pool in results[0]:
        layers, slot_bytes = alone.layers(pool), alone.slot_bytes(pool)
        stages = [results[mesh.rank_of(replace(mesh.topology(0), pp_rank=stage))] for stage in range(mesh.pp_size)]
        assert sum(stage[pool][0] for stage in stages) == layers, (
            f"RANK-5: the stages of {mesh.name} share {layers} layers of {pool.value}, got {stages}"
        )
        parts = [found[pool][1] for found in results]
        assert parts == [slot_bytes // mesh.tp_size] * mesh.ranks, (
            f"RANK-5: each of {mesh.tp_size} tensor-parallel ranks holds its part of {slot_bytes} bytes of a slot of "
            f"{pool.value}, got {parts}"
        )
    alone.close()


@clause("RANK-6", needs=STORAGE_NEEDS)
@pytest.mark.parametrize("is_mla", [False, True], ids=["divided", "mla"])
@on_meshes(*ALL_MESHES)
def test_every_shard_is_written_by_one_rank(launch: Launch, adapter_type: type[CacheAdapter], is_mla: bool) -> None:
    config = configuration(adapter_type)
    config = replace(config, model=reshaped(config.model, is_mla=is_mla))
    results = launch.values(offers, adapter_type, config)
    mesh = launch.mesh
    writers = Counter(key for offered in results for key in offered)
    assert set(writers.values()) == {1}, (
        f"RANK-6: expected one writer for each object, got several for {[key for key, n in writers.items() if n > 1]}"
    )
    shards = mesh.cp_size * mesh.pp_size * (1 if is_mla else mesh.tp_size)
    assert len(writers) == shards * len(PROMPT), (
        f"RANK-6: expected an object for each of {len(PROMPT)} pages and {shards} shards, got {sorted(writers)}"
    )
