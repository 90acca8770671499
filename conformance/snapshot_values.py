"""A snapshot as plain values, so that a test can compare the state before with the state after."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.driving.driver import Driver
from hicache.testing.snapshot import Snapshot
from hicache.types import Slots, TransferKind

from .transfers import slots_under_way
from .tree_view import free_host_slots, free_slots, host_locks, host_slots, lock_counts, residency


def snapshot_values(snapshot: Snapshot) -> tuple[object, ...]:
    """Everything: each node with its slots, locks and hits, the free slots, and the host tier if there is one."""
    nodes = {
        (node.namespace, snapshot.prefix(row)): (node.start, _plain(node.slots), dict(node.locks), node.hits)
        for row, node in enumerate(snapshot.nodes)
    }
    return nodes, free_slots(snapshot), _host_values(snapshot)


def device_ownership(snapshot: Snapshot, config: CacheConfig) -> tuple[object, ...]:
    """What is cached, locked and free on the device. Recency, hits and the ends of nodes are left out."""
    return residency(snapshot, config), lock_counts(snapshot, config), free_slots(snapshot)


def tier_ownership(driver: Driver) -> tuple[object, ...]:
    """What is cached, locked and free on both tiers, and the slots of transfers under way."""
    on_host = {component: host_slots(driver, component) for component in driver.config.components}
    moving = [slots_under_way(driver, kind) for kind in TransferKind]
    on_device = device_ownership(driver.snapshot(), driver.config)
    return *on_device, on_host, host_locks(driver), free_host_slots(driver), moving


def _host_values(snapshot: Snapshot) -> tuple[object, ...]:
    """The host tier: nodes, transfers under way, free slots, and slots that are kept for readers."""
    host = snapshot.host
    if host is None:
        return ()
    nodes = {
        (node.namespace, snapshot.prefix(row)): (_plain(view.slots), view.locks, view.pins, view.host_pins)
        for row, (node, view) in enumerate(zip(snapshot.nodes, host.nodes, strict=True))
    }
    transfers = [(one.kind, _plain(one.device), _plain(one.host)) for one in host.transfers]
    free = {component: set(pool.free.tolist()) for component, pool in host.pools.items()}
    return nodes, transfers, free, _plain(host.kept)


def _plain(slots: Mapping[str, Slots | None]) -> dict[str, list[int] | None]:
    return {component: None if own is None else own.tolist() for component, own in slots.items()}
