"""One rank is slower in one kind of transfer: no rank takes a transfer over before it has ended on every rank."""

from __future__ import annotations

import pytest

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.contract import clause
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld, mesh_of
from hicache.types import Component, StorageKind, TransferKind, TransferPhase

from .configurations import ALL_MESHES, configuration, on_meshes
from .rank_actions import (
    MARKS_NEEDS,
    NEEDS,
    STORAGE_NEEDS,
    catch_up,
    elements_on_host,
    evict_all,
    finish_all_but,
    marks,
)

PAIR = (1, 2)
PROMPT = (1, 2, 3, 4)
"""The pages of the prompts."""


def stored_nodes(driver: RankDriver) -> tuple[int, int]:
    """The number of nodes that are marked as stored, and of all nodes."""
    given = marks(driver)
    return sum(Component.FULL in names for names in given), len(given)


def backs_up(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[int, int]]:
    """For each slow rank: elements on the host before its backup has ended, and after."""
    driver = RankDriver(adapter_type, config, world)
    came = []
    for slow in range(mesh_of(world.topology).ranks):
        start = elements_on_host(driver)
        driver.put(driver.key(driver.prompt([10 * slow + page for page in PAIR])))
        finish_all_but(driver, slow, TransferKind.BACKUP)
        before = elements_on_host(driver)
        catch_up(driver)
        came.append((before - start, elements_on_host(driver) - before))
    driver.end()
    return came


def loads(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, slow: int) -> tuple[str, str]:
    """The phase of a load before it has ended on one rank, and after."""
    driver = RankDriver(adapter_type, config, world)
    key = driver.key(driver.prompt(PROMPT))
    driver.put(key)
    driver.drain()
    evict_all(driver)
    load = driver.load_back(key, driver.match(key))
    assert load is not None, f"HOST-5: expected a load of {driver.aligned(key)} elements that are on the host, got None"
    finish_all_but(driver, slow, TransferKind.LOAD)
    before = driver.load_phase(load.ticket)
    catch_up(driver)
    after = driver.load_phase(load.ticket)
    driver.claim(load.ticket)
    driver.end()
    return before.value, after.value


def stores(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, slow: int) -> tuple[int, int]:
    """Nodes that count as stored before one rank's storage has answered, and nodes that do not after it."""
    driver = RankDriver(adapter_type, config, world)
    driver.put(driver.key(driver.prompt(PROMPT)))
    finish_all_but(driver, slow, StorageKind.STORE)
    before, nodes = stored_nodes(driver)
    catch_up(driver)
    after, _ = stored_nodes(driver)
    driver.end()
    return before, nodes - after


def prefetches(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig, slow: int, kind: StorageKind
) -> tuple[int | None, int | None]:
    """The result of check_prefetch before one rank's storage has answered, and after."""
    driver = RankDriver(adapter_type, config, world)
    key = driver.key(driver.prompt(PROMPT))
    driver.put(key)
    driver.drain()
    driver.reset()
    ticket = driver.prefetch(key)
    assert ticket is not None, "FETCH-1: expected a prefetch of a prompt that is in storage alone, got None"
    finish_all_but(driver, slow, kind)
    before = driver.check_prefetch(ticket)
    catch_up(driver)
    after = driver.check_prefetch(ticket)
    driver.end()
    return before, after


@clause("RANK-1", "RANK-2", "RANK-4", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_no_rank_has_a_backup_before_every_rank_has_it(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=None)
    results = launch.values(backs_up, adapter_type, config)
    expected = [(0, len(PAIR) * config.page_size)] * launch.mesh.ranks
    assert results == [expected] * launch.mesh.ranks, (
        f"RANK-4: elements that came to the host before and after the slow rank was ready, for each slow rank: "
        f"expected {expected} on every rank, got {results}"
    )


@clause("RANK-1", "RANK-2", needs=NEEDS)
@on_meshes(*ALL_MESHES)
def test_a_load_ends_when_it_has_ended_on_every_rank(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=None)
    results = launch.values(loads, adapter_type, config, launch.mesh.ranks - 1)
    expected = (TransferPhase.RUNNING.value, TransferPhase.DONE.value)
    assert results == [expected] * len(results), (
        f"RANK-1: phase of the load before and after the last rank was ready: expected {expected}, got {results}"
    )


@clause("RANK-1", "RANK-2", needs=MARKS_NEEDS)
@on_meshes(*ALL_MESHES)
def test_a_node_counts_as_stored_when_every_rank_has_written_it(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    results = launch.values(stores, adapter_type, configuration(adapter_type), launch.mesh.ranks - 1)
    assert results == [(0, 0)] * len(results), (
        "RANK-1: nodes stored before the last rank was ready, and nodes not stored after: expected (0, 0), got "
        f"{results}"
    )


@clause("RANK-1", "RANK-2", "FETCH-7", needs=STORAGE_NEEDS)
@pytest.mark.parametrize("kind", [StorageKind.QUERY, StorageKind.PREFETCH], ids=lambda kind: kind.value)
@on_meshes(*ALL_MESHES)
def test_a_prefetch_ends_when_every_rank_has_it(
    launch: Launch, adapter_type: type[CacheAdapter], kind: StorageKind
) -> None:
    config = configuration(adapter_type)
    results = launch.values(prefetches, adapter_type, config, launch.mesh.ranks - 1, kind)
    expected = (None, len(PROMPT) * config.page_size)
    assert results == [expected] * len(results), (
        f"FETCH-7: tokens that the prefetch brought, before and after the last rank was ready: "
        f"expected {expected}, got {results}"
    )
