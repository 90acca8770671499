"""Arrivals: how much of each component is under way between the tiers."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver
from hicache.types import NO_SLOTS, TransferKind

from .under_way import operations


def slots_under_way(driver: Driver, kind: TransferKind) -> dict[str, int]:
    """How many slots of each component transfers of one direction move."""
    transfers = operations(driver, kind)
    return {name: sum(len(one.device.get(name, NO_SLOTS)) for one in transfers) for name in driver.config.components}
