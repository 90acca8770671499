"""A copy or a storage job that fails on one rank: it counts as failed on all ranks."""

from __future__ import annotations

from collections.abc import Callable

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Pending
from hicache.testing.contract import clause
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.ranks.launch import Launch
from hicache.testing.ranks.world import RankWorld, mesh_of
from hicache.testing.storage.scripted import Faults
from hicache.types import Pool, TransferKind, TransferPhase

from .configurations import CP2_TP2, PP2_TP2, TP2, configuration, on_meshes
from .rank_actions import MARKS_NEEDS, NEEDS, STORAGE_NEEDS, elements_on_host, evict_all, marks
from .stored_prompt import PROMPT, begin, brought, objects, prompt_key, put_in_storage, store

SEVERAL = ((1, 2), (3, 4), (5, 6))
"""Prompts whose backups are one transfer."""


def pending(driver: RankDriver, kind: TransferKind) -> Pending:
    found = driver.pending(kind)
    assert len(found) == 1, f"FLOW-4: expected one pending {kind.value}, got {found}"
    return found[0]


def end(driver: RankDriver, kind: TransferKind, failing: int, parts_done: int) -> None:
    """A transfer fails on one rank after so many parts, and completes on the others."""
    driver.failures += 1
    if driver.rank == failing:
        driver.fail(pending(driver, kind).ticket, parts_done)
    else:
        driver.complete(pending(driver, kind).ticket)
    driver.step()


def backs_up(
    world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig
) -> list[tuple[int, int, int, int]]:
    """For each failing rank: parts of the backup, parts done there, pages on the host then, and after a retry."""
    driver = RankDriver(adapter_type, config, world)
    found = []
    for failing in range(mesh_of(world.topology).ranks):
        for pages in SEVERAL:
            driver.put(prompt_key(driver, pages))
        driver.step()
        parts = pending(driver, TransferKind.BACKUP).parts
        done = failing % parts
        end(driver, TransferKind.BACKUP, failing, done)
        came = elements_on_host(driver) // config.page_size
        for pages in SEVERAL:
            driver.match(prompt_key(driver, pages))
        driver.drain()
        found.append((parts, done, came, elements_on_host(driver) // config.page_size))
        driver.reset()
    driver.end()
    return found


def loads(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[str, bool, int]]:
    """For each failing rank: the phase of a load, whether it delivered, and the device hit after a retry."""
    driver = RankDriver(adapter_type, config, world)
    key = prompt_key(driver)
    driver.put(key)
    driver.drain()
    found = []
    for failing in range(mesh_of(world.topology).ranks):
        evict_all(driver)
        load = driver.load_back(key, driver.match(key))
        assert load is not None, f"HOST-5: expected a load of {driver.aligned(key)} elements on the host, got None"
        driver.step()
        end(driver, TransferKind.LOAD, failing, 0)
        phase = driver.load_phase(load.ticket)
        has_delivered = driver.claim(load.ticket) is not None
        again = driver.load(key)
        found.append((phase.value, has_delivered, len(again.device_indices)))
    driver.end()
    return found


@clause("RANK-1", "RANK-4", needs=NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_a_backup_counts_as_far_as_on_the_rank_where_it_failed(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    results = launch.values(backs_up, adapter_type, configuration(adapter_type, stop_policy=None))
    for rank, found in enumerate(results):
        for failing, (parts, done, came, afterwards) in enumerate(found):
            assert parts == len(SEVERAL), f"expected one transfer of {len(SEVERAL)} parts, got {parts}"
            expected = sum(len(pages) for pages in SEVERAL[:done]), sum(map(len, SEVERAL))
            assert (came, afterwards) == expected, (
                f"RANK-1: rank {failing} copied {done} of {parts} parts: expected pages on the host then and when it "
                f"was tried again {expected}, on rank {rank} are {(came, afterwards)}"
            )


@clause("RANK-1", "RANK-4", needs=NEEDS)
@on_meshes(TP2, CP2_TP2, PP2_TP2)
def test_a_load_that_failed_on_one_rank_has_failed_on_all(launch: Launch, adapter_type: type[CacheAdapter]) -> None:
    config = configuration(adapter_type, stop_policy=None)
    expected = (TransferPhase.FAILED.value, False, 4 * config.page_size)
    for rank, found in enumerate(launch.values(loads, adapter_type, config)):
        for failing, came in enumerate(found):
            assert came == expected, (
                f"RANK-1: the load failed on rank {failing}: expected its phase, whether it delivered, and what is on "
                f"the device when it was tried again {expected}, on rank {rank} {came}"
            )


Fault = Callable[[RankDriver], None]


def set_raises(driver: RankDriver) -> None:
    store(driver).faults.raising.add("set")


def first_page_is_refused(driver: RankDriver) -> None:
    store(driver).faults.refused.update(objects(driver, Pool.KV)[:1])


def no_page_is_kept(driver: RankDriver) -> None:
    store(driver).faults.failing_sets = 1 << 20


def exists_raises(driver: RankDriver) -> None:
    store(driver).faults.raising.add("exists")


def has_raises(driver: RankDriver) -> None:
    store(driver).faults.raising.add("has")


def get_raises(driver: RankDriver) -> None:
    store(driver).faults.raising.add("get")


def first_read_fails(driver: RankDriver) -> None:
    store(driver).faults.failing_gets = 1


def first_page_is_short(driver: RankDriver) -> None:
    store(driver).corrupt(objects(driver, Pool.KV)[:1], "short")


WRITING: tuple[Fault, ...] = (set_raises, first_page_is_refused, no_page_is_kept)
READING: tuple[Fault, ...] = (exists_raises, has_raises, get_raises, first_read_fails, first_page_is_short)


def restore(driver: RankDriver) -> None:
    """End all faults; the objects in the store stay."""
    store(driver).faults = Faults()


def stored_nodes(driver: RankDriver) -> tuple[int, int]:
    """The number of nodes that are marked as stored, and of all nodes."""
    given = marks(driver)
    return sum(map(bool, given)), len(given)


def stores(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[str, int, int]]:
    """For each fault: nodes that count as stored during it, and nodes that do not after it."""
    driver = RankDriver(adapter_type, config, world)
    found = []
    for number, fault in enumerate(WRITING):
        store(driver).empty()
        if driver.rank == number % mesh_of(world.topology).ranks:
            fault(driver)
        driver.put(prompt_key(driver))
        driver.drain()
        meanwhile, _ = stored_nodes(driver)
        restore(driver)
        driver.match(prompt_key(driver))
        driver.drain()
        afterwards, nodes = stored_nodes(driver)
        found.append((fault.__name__, meanwhile, nodes - afterwards))
        driver.reset()
    driver.end()
    return found


def prefetched(driver: RankDriver) -> int:
    """The number of pages that a prefetch brings."""
    ticket = begin(driver)
    driver.drain()
    came = brought(driver, ticket)
    driver.reset()
    return came


def prefetches(world: RankWorld, adapter_type: type[CacheAdapter], config: CacheConfig) -> list[tuple[str, int, int]]:
    """For each fault: pages that a prefetch brings during it, and after it."""
    driver = RankDriver(adapter_type, config, world)
    put_in_storage(driver, with_prefixes=True)
    whole, found = dict(store(driver).objects), []
    for number, fault in enumerate(READING):
        if driver.rank == number % mesh_of(world.topology).ranks:
            fault(driver)
        meanwhile = prefetched(driver)
        restore(driver)
        store(driver).restore(whole)
        found.append((fault.__name__, meanwhile, prefetched(driver)))
    driver.end()
    return found


@clause("RANK-1", "RANK-2", needs=MARKS_NEEDS)
@on_meshes(TP2, PP2_TP2)
def test_a_node_that_one_rank_could_not_write_does_not_count_as_stored(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    for rank, found in enumerate(launch.values(stores, adapter_type, configuration(adapter_type))):
        for fault, meanwhile, lacking in found:
            assert (meanwhile, lacking) == (0, 0), (
                f"RANK-1: {fault} on one rank: expected no node to count as stored during it, and none to be left "
                f"out afterwards; on rank {rank} were stored {meanwhile}, left out {lacking}"
            )


@clause("RANK-1", "RANK-2", "FETCH-7", needs=STORAGE_NEEDS)
@on_meshes(TP2, PP2_TP2)
def test_pages_that_one_rank_could_not_read_are_not_prefetched(
    launch: Launch, adapter_type: type[CacheAdapter]
) -> None:
    for rank, found in enumerate(launch.values(prefetches, adapter_type, configuration(adapter_type))):
        for fault, meanwhile, afterwards in found:
            assert (meanwhile, afterwards) == (0, len(PROMPT)), (
                f"FETCH-7: {fault} on one rank: expected no page to come meanwhile, and {len(PROMPT)} afterwards; "
                f"on rank {rank} came {meanwhile} and {afterwards}"
            )
