"""What a cache shows of itself as plain values, so that before and after can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.patterns import element_bytes
from hicache.testing.snapshot import Snapshot
from hicache.types import Component, Namespace, Slots

Prefix: TypeAlias = tuple[Namespace, bytes]
"""A namespace and all elements from the root on."""

Residency: TypeAlias = dict[tuple[str, Namespace, bytes], tuple[int, ...]]
"""By component and prefix: the slots of the prefix's last page, or the state at its end. Knows nothing of nodes."""


def residency(snapshot: Snapshot, config: CacheConfig) -> Residency:
    """What is cached, page by page, however the nodes are cut."""
    found: Residency = {}
    page_bytes = config.page_size * element_bytes(config.bigram)
    for number, node in enumerate(snapshot.nodes):
        whole = snapshot.prefix(number)
        for component, slots in node.slots.items():
            if slots is None:
                continue
            parts = (
                [slots]
                if component == Component.MAMBA
                else np.split(slots, (node.end - node.start) // config.page_size)
            )
            for back, part in enumerate(reversed(parts)):
                prefix = whole[: len(whole) - back * page_bytes]
                found[component, node.namespace, prefix] = tuple(part.tolist())
    return found


def locked(snapshot: Snapshot) -> dict[Prefix, dict[str, int]]:
    """The lock counts of each node that has a lock."""
    counts = {(node.namespace, snapshot.prefix(number)): dict(node.locks) for number, node in enumerate(snapshot.nodes)}
    return {prefix: locks for prefix, locks in counts.items() if any(locks.values())}


def free_slots(snapshot: Snapshot) -> dict[str, set[int]]:
    """The free slots of each component."""
    return {component: set(pool.free.tolist()) for component, pool in snapshot.pools.items()}


def holdings(snapshot: Snapshot, config: CacheConfig) -> tuple[object, ...]:
    """Who holds what: what is cached, locked and free. Knows nothing of recency and hits."""
    return residency(snapshot, config), locked(snapshot), free_slots(snapshot)


def picture(snapshot: Snapshot) -> tuple[object, ...]:
    """Everything: each node with its slots, locks and hits, and the free slots."""
    nodes = {
        (node.namespace, snapshot.prefix(number)): (node.start, _plain(node.slots), dict(node.locks), node.hits)
        for number, node in enumerate(snapshot.nodes)
    }
    return nodes, free_slots(snapshot)


def _plain(slots: Mapping[str, Slots | None]) -> dict[str, list[int] | None]:
    return {component: None if held is None else held.tolist() for component, held in slots.items()}
