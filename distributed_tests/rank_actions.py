"""What the ranks of a scenario do together: transfers at different speeds, evictions, and what is resident then."""

from __future__ import annotations

from hicache.config import CacheConfig
from hicache.testing.adapter import Capability
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.storage.scripted import Store, store_of
from hicache.types import Component, StorageKind, Tier, TransferKind

Kind = TransferKind | StorageKind

KINDS: frozenset[Kind] = frozenset((*TransferKind, *StorageKind))

NEEDS = (Capability.SNAPSHOT, Capability.STEPPED, Capability.HOST)
"""The capabilities that a test of transfers at different speeds needs."""

STORAGE_NEEDS = (*NEEDS, Capability.STORAGE, Capability.STEPPED_STORAGE)

MARKS_NEEDS = (*STORAGE_NEEDS, Capability.MARKS)

ROUNDS = 4
"""Enough steps to move data from the device to storage, or back, when nothing is slow."""


def marks(driver: RankDriver) -> tuple[frozenset[str], ...]:
    """The components of each node that are marked as stored."""
    storage = driver.snapshot().storage
    assert storage is not None, "the cache has a storage tier"
    assert storage.persisted is not None, "with MARKS a snapshot shows which components of each node are stored"
    return storage.persisted


def finish_all_but(driver: RankDriver, slow: int, kind: Kind) -> None:
    """Let everything end but the transfers of one kind on one rank."""
    for _ in range(ROUNDS):
        driver.let_end(*(KINDS if driver.rank != slow else KINDS - {kind}))
        driver.step()


def catch_up(driver: RankDriver) -> None:
    """Let everything end on all ranks."""
    for _ in range(ROUNDS):
        driver.let_end(*KINDS)
        driver.step()


def elements_on_host(driver: RankDriver) -> int:
    """The number of FULL elements that the tree has on the host."""
    host = driver.snapshot().host
    held = [view.slots[Component.FULL] for view in host.nodes] if host is not None else []
    return sum(len(slots) for slots in held if slots is not None)


def evict_all(driver: RankDriver) -> None:
    """Evict everything from the device that is not locked."""
    for component, pool in driver.snapshot().pools.items():
        driver.evict(component, pool.capacity)


def own_store(config: CacheConfig) -> Store:
    """The scripted store of a rank."""
    store = store_of(config)
    assert store is not None, f"{config.name} keeps its pages where a test can see them"
    return store


def advance_jobs(driver: RankDriver, batches: int) -> None:
    """Let each storage job do so many batches."""
    for one in driver.pending(*StorageKind):
        for _ in range(min(batches, one.units - one.units_done)):
            if any(one.ticket == other.ticket for other in driver.pending(*StorageKind)):
                driver.advance(one.ticket)


def evict_on(driver: RankDriver, tier: Tier, component: str, tokens: int) -> object:
    """Evict on a tier; returns what was freed, and what was refused."""
    result = driver.evict(component, tokens) if tier is Tier.DEVICE else driver.evict_host(component, tokens)
    return result.freed, result.refused


def evict_both_tiers(driver: RankDriver) -> None:
    """Evict both tiers. What leaves the device is stored before it leaves the host."""
    assert driver.config.host is not None, f"{driver.config.name} has a host tier"
    for component in driver.config.components:
        driver.evict(component, driver.config.capacity_tokens[component])
    driver.drain()
    for component in driver.config.components:
        driver.evict_host(component, driver.config.host.capacity_tokens[component])


def require_empty(driver: RankDriver) -> None:
    """FLOW-7: when everything was released, all slots of both tiers are free."""
    snapshot = driver.snapshot()
    assert snapshot.host is not None, f"{driver.config.name} has a host tier"
    for where, pools in (("device", snapshot.pools), ("host", snapshot.host.pools)):
        taken = {name: pool.capacity - len(pool.free) for name, pool in pools.items()}
        assert not any(taken.values()), (
            f"FLOW-7: expected no taken slots on the {where} of rank {driver.rank}, got {taken}"
        )
