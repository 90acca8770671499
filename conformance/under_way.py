"""Transfers that are queued or running, in the hands of a test."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driving.driver import Driver
from hicache.testing.host_verbs import PendingTransfer
from hicache.testing.snapshot import TransferView
from hicache.types import LoadBack, TransferKind

from .verbs import key_of


def queue_load(driver: Driver, pages: Sequence[int]) -> LoadBack:
    """Ask for a prompt that is on the host; it begins with the next step. It counts as no request."""
    key = key_of(driver, pages)
    load = driver.load_back(key, driver.match(key, chunked=True))
    assert load is not None, f"HOST-4: {tuple(pages)} is on the host and there is room, yet no load was started"
    return load


def start_load(driver: Driver, pages: Sequence[int]) -> LoadBack:
    """Ask for a prompt that is on the host, and let the load begin."""
    load = queue_load(driver, pages)
    driver.step()
    return load


def pending(driver: Driver, kind: TransferKind) -> PendingTransfer:
    """The one transfer of a kind that is pending."""
    found = [one for one in driver.pending() if one.kind is kind]
    assert len(found) == 1, f"FLOW-4: one {kind.value} is pending, got {found}"
    return found[0]


def operations(driver: Driver, kind: TransferKind) -> list[TransferView]:
    """What is queued or running of a kind, operation by operation."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    return [one for one in host.transfers if one.kind is kind]


def free_on_device(driver: Driver) -> dict[str, int]:
    """Free device slots of each component."""
    return {component: len(pool.free) for component, pool in driver.snapshot().pools.items()}
