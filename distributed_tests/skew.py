"""Skew: how far the transfers of one rank come while the others go on, and what is resident by then."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.ranks.rank_driver import RankDriver
from hicache.types import Component, StorageKind, TransferKind

Kind = TransferKind | StorageKind

KINDS: frozenset[Kind] = frozenset((*TransferKind, *StorageKind))

NEEDS = (Capability.SNAPSHOT, Capability.STEPPED, Capability.HOST)
"""What an adapter must declare so that a test can be slow on one rank, and see what comes of it."""

STORAGE_NEEDS = (*NEEDS, Capability.STORAGE, Capability.STEPPED_STORAGE)

MARKS_NEEDS = (*STORAGE_NEEDS, Capability.MARKS)

ROUNDS = 4
"""Enough steps for anything to get from the device to storage, or back, when nothing is slow."""


def marks(driver: RankDriver) -> tuple[frozenset[str], ...]:
    """What storage was given of each node."""
    storage = driver.snapshot().storage
    assert storage is not None, "the cache has a storage tier"
    assert storage.persisted is not None, "what declares MARKS shows them"
    return storage.persisted


def finish_all_but(driver: RankDriver, slow: int, kind: Kind) -> None:
    """All goes on but what is slow: transfers of one kind on one rank."""
    for _ in range(ROUNDS):
        driver.let_end(*(KINDS if driver.rank != slow else KINDS - {kind}))
        driver.step()


def catch_up(driver: RankDriver) -> None:
    """Nothing is slow any more."""
    for _ in range(ROUNDS):
        driver.let_end(*KINDS)
        driver.step()


def elements_on_host(driver: RankDriver) -> int:
    """FULL elements that the tree has on the host."""
    host = driver.snapshot().host
    held = [view.slots[Component.FULL] for view in host.nodes] if host is not None else []
    return sum(len(slots) for slots in held if slots is not None)


def evict_all(driver: RankDriver) -> None:
    """Leave on the device what is locked there, and nothing else."""
    for component, pool in driver.snapshot().pools.items():
        driver.evict(component, pool.capacity)
