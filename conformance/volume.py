"""Bytes of cached data: over all layers of each pool that a component's slots reach into."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.testing.driving.driver import Driver
from hicache.types import Pool, TransferKind

from .host_trees import held_below
from .trees import Pages, held
from .verbs import FULL, MAMBA, SWA

POOLS = {FULL: (Pool.KV, Pool.INDEXER), SWA: (Pool.SWA,), MAMBA: (Pool.MAMBA,)}
COUNTER = {TransferKind.BACKUP: "bytes_backed_up", TransferKind.LOAD: "bytes_loaded"}


def volume(driver: Driver, slots: Mapping[str, int]) -> int:
    """Bytes of so many slots of each component."""
    return sum(
        count * driver.adapter.slot_bytes(pool) * driver.adapter.layers(pool)
        for component, count in slots.items()
        for pool in POOLS[component]
        if driver.adapter.layers(pool)
    )


def volume_below(driver: Driver) -> int:
    """Bytes of all that is on the host."""
    return volume(driver, {name: _count(held_below(driver, name)) for name in driver.config.components})


def volume_on_device(driver: Driver) -> int:
    """Bytes of all that is cached on the device."""
    return volume(driver, {name: _count(held(driver, name)) for name in driver.config.components})


def moved(driver: Driver, kind: TransferKind) -> int:
    """Bytes that transfers of a kind have brought so far, as the cache counts them."""
    return driver.adapter.counters()[COUNTER[kind]]


def _count(found: Mapping[Pages, tuple[int, ...]]) -> int:
    return sum(map(len, found.values()))
