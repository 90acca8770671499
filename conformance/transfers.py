"""Transfers under way: how a test queues, moves and fails them, and how many bytes they move."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from hicache.testing.adapter import Pending
from hicache.testing.driving.driver import Driver
from hicache.testing.driving.pools import component_of, pools_of, tokens_per_entry
from hicache.testing.snapshot import TransferView
from hicache.types import NO_SLOTS, Key, LoadBack, TransferKind

from .scenario import key_of
from .tree_view import Pages, device_slots, host_slots


def queue_load(driver: Driver, pages: Sequence[int]) -> LoadBack:
    """Request the load of a prompt that is on the host; it starts with the next step. Not counted as a hit."""
    key = key_of(driver, pages)
    # FLOW-6 is about a load of the same chain that has not ended, HOST-4 about all others.
    under_way = [one.key for one in driver.loads.values() if not one.phase.has_ended]
    overlaps = any(_begin(driver, other) == _begin(driver, key) for other in under_way)
    load, clause_id = driver.load_back(key, driver.match(key, chunked=True)), "FLOW-6" if overlaps else "HOST-4"
    assert load is not None, f"{clause_id}: {tuple(pages)} is on the host and there is room: expected a load, got None"
    return load


def start_load(driver: Driver, pages: Sequence[int]) -> LoadBack:
    """Request the load of a prompt that is on the host, and start it."""
    load = queue_load(driver, pages)
    driver.step()
    return load


def pending_transfer(driver: Driver, kind: TransferKind) -> Pending:
    """The only transfer of a kind that is pending."""
    found = driver.pending(kind)
    assert len(found) == 1, f"FLOW-4: expected one pending {kind.value}, got {found}"
    return found[0]


def transfer_views(driver: Driver, kind: TransferKind) -> list[TransferView]:
    """What is queued or running of a kind, as the snapshot shows it: one view for each node."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    return [one for one in host.transfers if one.kind is kind]


def stack(driver: Driver) -> dict[str, int]:
    """The number of layers of every pool that a prompt uses."""
    return {pool: driver.adapter.layers(pool) for pool in component_of(driver.config)}


def slots_under_way(driver: Driver, kind: TransferKind) -> dict[str, int]:
    """How many device slots of each component are read or written by transfers of a kind."""
    views = transfer_views(driver, kind)
    return {name: sum(len(one.device.get(name, NO_SLOTS)) for one in views) for name in driver.config.components}


Stage = Callable[[Driver, TransferKind], None]


def queued(driver: Driver, kind: TransferKind) -> None:
    """The transfer has not started."""


def running(driver: Driver, kind: TransferKind) -> None:
    """The transfer has started, and no layer has moved."""
    driver.step()
    pending_transfer(driver, kind)


def halfway(driver: Driver, kind: TransferKind) -> None:
    """One layer has moved."""
    driver.step()
    driver.advance(pending_transfer(driver, kind).ticket)


def arrived(driver: Driver, kind: TransferKind) -> None:
    """All layers have moved, and no step has taken the transfer over."""
    driver.step()
    driver.complete(pending_transfer(driver, kind).ticket)


STAGES = pytest.mark.parametrize("stage", [queued, running, halfway, arrived], ids=lambda stage: stage.__name__)


def match_prompt(driver: Driver, pages: Sequence[int], requests: int = 1) -> None:
    """So many requests match a prompt and compute nothing."""
    for _ in range(requests):
        driver.match(key_of(driver, pages))


COUNTER = {TransferKind.BACKUP: "bytes_backed_up", TransferKind.LOAD: "bytes_loaded"}


def slot_bytes(driver: Driver, slots: Mapping[str, int]) -> int:
    """Bytes of so many slots of each component."""
    return sum(
        count // tokens_per_entry(driver.config, pool) * driver.adapter.slot_bytes(pool) * driver.adapter.layers(pool)
        for component, count in slots.items()
        for pool in pools_of(driver.config, component)
        if driver.adapter.layers(pool)
    )


def transfer_bytes(driver: Driver, view: TransferView) -> int:
    """Bytes that a transfer moves."""
    return slot_bytes(driver, {component: len(slots) for component, slots in view.device.items()})


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


def _begin(driver: Driver, key: Key) -> tuple[object, ...]:
    """The first page of a key."""
    return key.namespace, *key.tokens[: driver.config.page_size].tolist()
