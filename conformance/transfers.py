"""Transfers that are queued or running, and how a test moves them."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.adapter import PendingTransfer
from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import TransferView
from hicache.types import NO_SLOTS, LoadBack, TransferKind

from .scenario import key_of


def queue_load(driver: Driver, pages: Sequence[int]) -> LoadBack:
    """Request the load of a prompt that is on the host; it starts with the next step. Not counted as a hit."""
    key = key_of(driver, pages)
    load = driver.load_back(key, driver.match(key, chunked=True))
    assert load is not None, f"HOST-4: {tuple(pages)} is on the host and the device has room: expected a load, got None"
    return load


def start_load(driver: Driver, pages: Sequence[int]) -> LoadBack:
    """Request the load of a prompt that is on the host, and start it."""
    load = queue_load(driver, pages)
    driver.step()
    return load


def pending_transfer(driver: Driver, kind: TransferKind) -> PendingTransfer:
    """The only transfer of a kind that is pending."""
    found = [one for one in driver.pending() if one.kind is kind]
    assert len(found) == 1, f"FLOW-4: expected one pending {kind.value}, got {found}"
    return found[0]


def transfer_views(driver: Driver, kind: TransferKind) -> list[TransferView]:
    """What is queued or running of a kind, as the snapshot shows it: one view for each node."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    return [one for one in host.transfers if one.kind is kind]


def slots_under_way(driver: Driver, kind: TransferKind) -> dict[str, int]:
    """How many device slots of each component are read or written by transfers of a kind."""
    views = transfer_views(driver, kind)
    return {name: sum(len(one.device.get(name, NO_SLOTS)) for one in views) for name in driver.config.components}
