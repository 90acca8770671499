"""Arrivals: what loads are bringing to the device, and what the host has yet to get."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import TransferView
from hicache.types import NO_SLOTS, TransferKind


def under_way(driver: Driver, kind: TransferKind) -> list[TransferView]:
    """The operations of one direction that are queued or running."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    return [one for one in host.transfers if one.kind is kind]


def slots_under_way(driver: Driver, kind: TransferKind) -> dict[str, int]:
    """How many slots of each component they move."""
    transfers = under_way(driver, kind)
    return {name: sum(len(one.device.get(name, NO_SLOTS)) for one in transfers) for name in driver.config.components}
