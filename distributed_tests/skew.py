"""Skew: moves the transfers of one rank more slowly than those of the others, and reads what is resident then."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.ranks.driver import RankDriver
from hicache.types import Component, StorageKind, TransferKind

Kind = TransferKind | StorageKind

KINDS: frozenset[Kind] = frozenset((*TransferKind, *StorageKind))

NEEDS = (Capability.SNAPSHOT, Capability.STEPPED, Capability.HOST)
"""The capabilities that a test of skew needs."""

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
