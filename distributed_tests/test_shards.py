"""The shard of a rank: its layers and its part of each pool, which it alone writes to storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache.config import CacheConfig
from hicache.storage.base import Pieces
from hicache.storage.file import FileStorage
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import reshaped
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld
from hicache.types import Component, Pool, TransferKind

from .configurations import ALL_MESHES, CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import NEEDS, STORAGE_NEEDS, catch_up, evict_all
from .stored_prompt import PROMPT, begin, brought, objects, pools, prompt_key, store

PAGES = (1, 2, 3)

DIVIDED: Mapping[str, Component] = {Pool.KV: Component.FULL, Pool.SWA: Component.SWA, Pool.MAMBA: Component.MAMBA}
"""The pools whose slots a tensor-parallel group divides, and the component of each."""


def measures(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> dict[str, tuple[int, int]]:
    """The layers, and the bytes of a slot, of each pool that is divided."""
    driver = RankDriver(adapter_type, config, world)
    pools = [pool for pool, component in DIVIDED.items() if component in config.components]
    found = {pool: (driver.adapter.layers(pool), driver.adapter.slot_bytes(pool)) for pool in pools}
    driver.end()
    return found


def offers(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> dict[str, int]:
    """The KV objects that this rank set in storage, and how often."""
    driver = RankDriver(adapter_type, config, world)
    driver.put(driver.key(driver.prompt(PAGES)))
    driver.drain()
    offered = Counter(key for call in store(driver).calls if call.verb == "set" for key in call.keys)
    wanted = driver.storage_keys(Pool.KV, driver.key(driver.prompt(PAGES)))
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
            f"RANK-5: the stages of {mesh.name} share {layers} layers of {pool}, got {stages}"
        )
        parts = [found[pool][1] for found in results]
        assert parts == [slot_bytes // mesh.tp_size] * mesh.ranks, (
            f"RANK-5: each of {mesh.tp_size} tensor-parallel ranks holds its part of {slot_bytes} bytes of a slot of "
            f"{pool}, got {parts}"
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
    assert len(writers) == shards * len(PAGES), (
        f"RANK-6: expected an object for each of {len(PAGES)} pages and {shards} shards, got {sorted(writers)}"
    )


Readable = Mapping[str, int]
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
    while moving := driver.pending(TransferKind.LOAD):
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


BACKEND = f"{__name__}:SharedFiles"
"""The name of the backend in a configuration."""

given: Counter[str] = Counter()
"""How often this process set each object."""


class SharedFiles(FileStorage):
    """The file backend with a counter. Options: those of `file`."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope, options)
        given.clear()

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        given.update(keys)
        return super().set(keys, sources, prefix_keys)


Stored = tuple[dict[str, int], dict[str, list[str]], int]
"""How often this rank set each object; the objects of the prompt in each pool; and pages that a prefetch brought."""


def stores(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> Stored:
    """Store a prompt with a state after each page, and prefetch it on every rank."""
    driver = RankDriver(adapter_type, config, world)
    for count in range(1, len(PROMPT) + 1):
        driver.put(prompt_key(driver, PROMPT[:count]))
        driver.drain()
    driver.reset()
    ticket = begin(driver)
    driver.drain()
    came = brought(driver, ticket)
    own = {pool: objects(driver, pool) for pool in pools(driver)}
    driver.end()
    return dict(given), own, came


def share_folder(config: CacheConfig, folder: Path) -> CacheConfig:
    """A model whose ranks have the same KV, and a storage folder that they share."""
    assert config.storage is not None, f"{config.name} has storage"
    storage = replace(config.storage, backend=BACKEND, options={"root": str(folder)})
    return replace(config, model=reshaped(config.model, is_mla=True), storage=storage)


@clause("RANK-6", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_pages_that_ranks_share_are_written_once_and_read_by_all(
    launch: Launch, adapter_type: type[CacheAdapter], tmp_path: Path
) -> None:
    config = share_folder(configuration(adapter_type), tmp_path / "pages")
    results = launch.values(stores, adapter_type, config)
    writes = sum((Counter(gave) for gave, _, _ in results), Counter[str]())
    for rank, (_, own, came) in enumerate(results):
        for pool, keys in own.items():
            by_key = [sum(writes[key] for key in writes if name.endswith(f"/{key}")) for name in keys]
            assert by_key == [1] * len(PROMPT), (
                f"RANK-6: expected each page of {pool} that rank {rank} holds to be written once, got {by_key}"
            )
        assert came == len(PROMPT), f"FETCH-7: expected {len(PROMPT)} pages to come to rank {rank}, {came} came"
