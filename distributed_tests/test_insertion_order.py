"""Mappings with another insertion order on one rank change neither the trees nor the collectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.ranks.digest import digest_of
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.testing.ranks.world import RankWorld
from hicache.types import StopPolicy

from .configurations import CP2_TP2, TP2, configuration, on_meshes
from .random_workload import RandomWorkload
from .rank_actions import STORAGE_NEEDS
from .stored_prompt import advance_batches, ask_for_pages, brought, put_in_storage

ROUNDS = 15


def reversed_order(config: CacheConfig) -> CacheConfig:
    """The same configuration with the opposite order of components, sidecars and capacities."""
    assert config.host is not None, f"{config.name} has a host tier"
    host = replace(config.host, capacity_tokens=_reversed(config.host.capacity_tokens))
    return replace(
        config,
        components=config.components[::-1],
        capacity_tokens=_reversed(config.capacity_tokens),
        host=host,
    )


def _reversed(table: Mapping[str, int]) -> dict[str, int]:
    return dict(reversed(list(table.items())))


def runs_workload(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig
) -> tuple[str, int, dict[str, list[str]]]:
    """The final tree, the pages of a prefetch that was cut, and the collectives by group."""
    driver = RankDriver(adapter_type, reversed_order(config) if world.rank == 1 else config, world)
    put_in_storage(driver, with_prefixes=True)
    ticket = ask_for_pages(driver)
    # Rank 1 lacks some of the batches, the others have read all.
    advance_batches(driver, 1 << 10 if driver.rank != 1 else 1)
    came = brought(driver, ticket)
    RandomWorkload(driver, 7).run(ROUNDS)
    calls = {group: [f"{call} of {call.count}" for call in made] for group, made in world.calls.items()}
    return digest_of(driver.snapshot()).text, came, calls


@clause("FETCH-7", "RANK-1", "RANK-2", needs=(*STORAGE_NEEDS, Capability.REQUESTS))
@on_meshes(TP2, CP2_TP2)
def test_the_order_of_mappings_changes_nothing(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=StopPolicy.BEST_EFFORT)
    results = launch.values(runs_workload, adapter_type, config)
    tree, came, calls = results[0]
    assert came == 0, f"FETCH-7: a pool has not come on rank 1, so nothing is kept; got {came} pages"
    for rank, (own_tree, own_came, own_calls) in enumerate(results):
        assert own_came == came, f"FETCH-7: expected {came} pages on every rank, on rank {rank} came {own_came}"
        assert own_calls == calls, f"RANK-2: expected the collectives of rank 0 {calls}, on rank {rank} {own_calls}"
        assert own_tree == tree, f"RANK-1: expected one tree, on rank {rank}:\n{own_tree}\non rank 0:\n{tree}"
