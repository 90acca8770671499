"""Bytes of cached data, over all layers of each pool that a component's slots address."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.testing.driving.driver import Driver
from hicache.types import Pool, TransferKind

from .scenario import FULL, MAMBA, SWA
from .tree_view import Pages, device_slots, host_slots

POOLS = {FULL: (Pool.KV, Pool.INDEXER), SWA: (Pool.SWA,), MAMBA: (Pool.MAMBA,)}
COUNTER = {TransferKind.BACKUP: "bytes_backed_up", TransferKind.LOAD: "bytes_loaded"}


def slot_bytes(driver: Driver, slots: Mapping[str, int]) -> int:
    """Bytes of so many slots of each component."""
    return sum(
        count * driver.adapter.slot_bytes(pool) * driver.adapter.layers(pool)
        for component, count in slots.items()
        for pool in POOLS[component]
        if driver.adapter.layers(pool)
    )


def bytes_on_host(driver: Driver) -> int:
    """Bytes of everything that is cached on the host."""
    return slot_bytes(driver, {name: _count(host_slots(driver, name)) for name in driver.config.components})


def bytes_on_device(driver: Driver) -> int:
    """Bytes of everything that is cached on the device."""
    return slot_bytes(driver, {name: _count(device_slots(driver, name)) for name in driver.config.components})


def bytes_moved(driver: Driver, kind: TransferKind) -> int:
    """Bytes that transfers of a kind have moved so far, by the cache's own counter."""
    return driver.adapter.counters()[COUNTER[kind]]


def _count(found: Mapping[Pages, tuple[int, ...]]) -> int:
    return sum(map(len, found.values()))
