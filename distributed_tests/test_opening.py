"""Ranks open their caches together: all of them or none, and all with the same configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hicache.config import CacheConfig, EvictionPolicy, WritePolicy
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import HybridModel, reshaped
from hicache.testing.ranks.driver import RankDriver, config_on
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld, mesh_of
from hicache.types import Component, StopPolicy

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import STORAGE_NEEDS
from .stored_prompt import begin, brought, put_in_storage

Change = Callable[[CacheConfig], CacheConfig]


def another_page_size(config: CacheConfig) -> CacheConfig:
    return replace(config, page_size=config.page_size // 2)


def another_order_of_eviction(config: CacheConfig) -> CacheConfig:
    return replace(config, policy=EvictionPolicy.FIFO)


def one_component_less(config: CacheConfig) -> CacheConfig:
    names = config.components[:-1] if len(config.components) > 1 else (Component.FULL.value, Component.MAMBA.value)
    assert config.host is not None, f"{config.name} has a host tier"
    device, host = ({name: tokens.get(name, 4) for name in names} for tokens in _capacities(config))
    chunk = config.page_size if Component.MAMBA in names else None
    below = replace(config.host, capacity_tokens=host)
    return replace(config, components=names, capacity_tokens=device, mamba_chunk_size=chunk, host=below)


def no_sidecar(config: CacheConfig) -> CacheConfig:
    return replace(config, model=reshaped(config.model, index_dim=0 if config.sidecars else 4))


def another_write_policy(config: CacheConfig) -> CacheConfig:
    assert config.host is not None, f"{config.name} has a host tier"
    return replace(config, host=replace(config.host, write_policy=WritePolicy.WRITE_BACK))


def another_stop_policy(config: CacheConfig) -> CacheConfig:
    assert config.storage is not None, f"{config.name} has storage"
    return replace(config, storage=replace(config.storage, stop_policy=StopPolicy.BEST_EFFORT))


def another_threshold(config: CacheConfig) -> CacheConfig:
    assert config.storage is not None, f"{config.name} has storage"
    return replace(config, storage=replace(config.storage, prefetch_threshold=config.page_size))


def no_storage(config: CacheConfig) -> CacheConfig:
    return replace(config, storage=None)


def another_model(config: CacheConfig) -> CacheConfig:
    return replace(config, model=reshaped(config.model, head_dim=2 * HybridModel.of(config.model).head_dim))


def another_fingerprint(config: CacheConfig) -> CacheConfig:
    assert config.storage is not None, f"{config.name} has storage"
    return replace(config, storage=replace(config.storage, model_fingerprint="another"))


CHANGES: tuple[Change, ...] = (
    another_page_size,
    another_order_of_eviction,
    one_component_less,
    no_sidecar,
    another_write_policy,
    another_stop_policy,
    another_threshold,
    no_storage,
    another_model,
    another_fingerprint,
)


def _capacities(config: CacheConfig) -> tuple[dict[str, int], dict[str, int]]:
    assert config.host is not None, f"{config.name} has a host tier"
    return dict(config.capacity_tokens), dict(config.host.capacity_tokens)


def no_place_for_pages(config: CacheConfig) -> CacheConfig:
    """A configuration whose backend cannot be opened."""
    assert config.storage is not None, f"{config.name} has storage"
    return replace(config, storage=replace(config.storage, options={"store": 0}))


def refusal(adapter_type: type[CacheAdapter], config: CacheConfig, world: RankWorld) -> tuple[bool, str]:
    """Whether opening a cache raises a ConfigurationError, and the message of any error."""
    try:
        adapter_type.on_rank(config, world).close()
    except ConfigurationError as error:
        return True, str(error)
    except Exception as error:  # noqa: BLE001 - an error of any type on the other ranks has to name this one
        return False, str(error)
    return False, "nothing"


def use(adapter_type: type[CacheAdapter], config: CacheConfig, world: RankWorld) -> int:
    """Open a cache, store a prompt, and prefetch it; returns the pages that came."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=False)
    ticket = begin(driver)
    driver.drain()
    came = brought(driver, ticket)
    driver.end()
    return came


def opens_differently(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig
) -> tuple[list[tuple[str, bool, str]], int]:
    """For each change of one rank's configuration the error of this rank; and the pages that came in the end."""
    own, ranks, found = config_on(config, world), mesh_of(world.topology).ranks, []
    for number, change in enumerate(CHANGES):
        told = change(own) if world.rank == number % ranks else own
        found.append((change.__name__, *refusal(adapter_type, told, world)))
    return found, use(adapter_type, config, world)


def opens_without_pages(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, failing: int
) -> tuple[bool, str, int]:
    """The error of this rank when one rank cannot open its backend, and pages that came when it can."""
    own = config_on(config, world)
    is_refused, words = refusal(adapter_type, no_place_for_pages(own) if world.rank == failing else own, world)
    return is_refused, words, use(adapter_type, config, world)


@clause("RANK-1", "RANK-2", needs=STORAGE_NEEDS)
@on_meshes(TP2, PP2_TP2)
def test_ranks_with_different_configurations_are_all_refused(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    for rank, (found, came) in enumerate(launch.values(opens_differently, adapter_type, configuration(adapter_type))):
        for change, is_refused, words in found:
            assert is_refused, (
                f"RANK-1: {change} on one rank: expected a ConfigurationError on rank {rank}, got {words}"
            )
        assert came > 0, f"RANK-1: with equal configurations expected pages from storage on rank {rank}, got none"


@clause("RANK-1", "RANK-8", needs=STORAGE_NEEDS)
@on_meshes(TP2, CP2_TP2)
def test_if_one_rank_cannot_open_its_storage_no_rank_opens_a_cache(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    config, failing = configuration(adapter_type), launch.mesh.ranks - 1
    for rank, (is_refused, words, came) in enumerate(launch.values(opens_without_pages, adapter_type, config, failing)):
        assert is_refused == (rank == failing), (
            f"RANK-8: rank {failing} cannot open its backend: expected a ConfigurationError there alone, rank {rank} "
            f"got {words}"
        )
        if rank != failing:
            assert f"rank {failing}" in words, (
                f"RANK-8: expected the error of rank {rank} to name rank {failing}, got {words!r}"
            )
        assert came > 0, f"RANK-1: with storage on every rank expected pages on rank {rank}, got none"
