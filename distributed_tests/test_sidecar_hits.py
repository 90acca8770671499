"""A pool that all ranks read in full but one, which lacks its last page: no rank keeps any of it."""

from __future__ import annotations

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.mesh import mesh_of
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import Component

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import STORAGE_NEEDS
from .stored_prompt import (
    ask_for_pages,
    brought,
    objects,
    pools,
    put_in_storage,
    slots_held_by_prefetches,
    store,
    taken_on_host,
)

Left = tuple[str, int, dict[str, int]]
"""The loss, pages that came, and host slots that are taken afterwards."""


def prefetches(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[Left]:
    """Prefetch a prompt with one state, at its end, while one rank lacks the last page of a pool."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=False)
    whole, found = dict(store(driver).objects), []
    for pool in pools(driver)[1:]:
        for poor in range(mesh_of(world.topology).ranks):
            ticket = ask_for_pages(driver)
            if driver.rank == poor:
                store(driver).corrupt(objects(driver, pool)[-1:])
            driver.drain()
            left = slots_held_by_prefetches(driver) | taken_on_host(driver)
            found.append((f"{pool.value} of rank {poor}", brought(driver, ticket), left))
            driver.reset()
            store(driver).restore(whole)
    driver.end()
    return found


@clause("FETCH-7", "RANK-1", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_no_rank_keeps_a_sidecar_that_is_incomplete_on_one_rank(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config = configuration(adapter_type)
    if not {Component.SWA, Component.MAMBA} & set(config.components):
        pytest.skip(f"{config.name} has no component that is needed at the end of a prefix alone")
    for rank, found in enumerate(launch.values(prefetches, adapter_type, config)):
        for lost, came, left in found:
            assert (came, left) == (0, {}), (
                f"FETCH-7: {lost} lacks its last page, and there is no other state: expected nothing to come, and no "
                f"host slot to be taken; on rank {rank} came {came} pages, and taken are {left}"
            )
