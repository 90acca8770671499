"""What a cache shows of itself as plain values, so that before and after can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.patterns import element_bytes
from hicache.testing.snapshot import Snapshot
from hicache.types import Component, Namespace, Slots

Place: TypeAlias = tuple[str, Namespace, bytes]
"""A component, a namespace, and all elements up to the end of a page; for MAMBA up to the end of a node."""


def residency(snapshot: Snapshot, config: CacheConfig) -> dict[Place, tuple[int, ...]]:
    """The slots of each cached page, and the cached states, however the nodes are cut."""
    found: dict[Place, tuple[int, ...]] = {}
    for number, node in enumerate(snapshot.nodes):
        for component, slots in node.slots.items():
            if slots is not None:
                places = _places(snapshot, number, component, config)
                found.update(zip(places, map(tuple, slots.reshape(len(places), -1).tolist()), strict=True))
    return found


def locks(snapshot: Snapshot, config: CacheConfig) -> dict[Place, int]:
    """The lock counts above zero, page by page, however the nodes are cut."""
    return {
        place: count
        for number, node in enumerate(snapshot.nodes)
        for component, count in node.locks.items()
        for place in _places(snapshot, number, component, config)
        if count
    }


def free_slots(snapshot: Snapshot) -> dict[str, set[int]]:
    """The free slots of each component."""
    return {component: set(pool.free.tolist()) for component, pool in snapshot.pools.items()}


def holdings(snapshot: Snapshot, config: CacheConfig) -> tuple[object, ...]:
    """Who holds what: what is cached, locked and free. Knows nothing of recency, hits, and where nodes are cut."""
    return residency(snapshot, config), locks(snapshot, config), free_slots(snapshot)


def picture(snapshot: Snapshot) -> tuple[object, ...]:
    """Everything: each node with its slots, locks and hits, the free slots, and the host tier if there is one."""
    nodes = {
        (node.namespace, snapshot.prefix(number)): (node.start, _plain(node.slots), dict(node.locks), node.hits)
        for number, node in enumerate(snapshot.nodes)
    }
    return nodes, free_slots(snapshot), _below(snapshot)


def _below(snapshot: Snapshot) -> tuple[object, ...]:
    """What is on the host, under way and kept."""
    host = snapshot.host
    if host is None:
        return ()
    nodes = {
        (node.namespace, snapshot.prefix(number)): (_plain(view.slots), view.locks, view.pins, view.host_pins)
        for number, (node, view) in enumerate(zip(snapshot.nodes, host.nodes, strict=True))
    }
    transfers = [(one.kind, _plain(one.device), _plain(one.host)) for one in host.transfers]
    free = {component: set(pool.free.tolist()) for component, pool in host.pools.items()}
    return nodes, transfers, free, _plain(host.kept)


def _places(snapshot: Snapshot, number: int, component: str, config: CacheConfig) -> list[Place]:
    """The places that a node holds one by one, from its beginning on."""
    node, prefix = snapshot.nodes[number], snapshot.prefix(number)
    count = 1 if component == Component.MAMBA else (node.end - node.start) // config.page_size
    lengths = len(prefix) - np.arange(count)[::-1] * config.page_size * element_bytes(config.bigram)
    return [(component, node.namespace, prefix[:length]) for length in lengths.tolist()]


def _plain(slots: Mapping[str, Slots | None]) -> dict[str, list[int] | None]:
    return {component: None if held is None else held.tolist() for component, held in slots.items()}
