"""What a cache says about itself: size counters and the mapping from FULL to SWA, against what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hicache.testing.laws.batches import batches
from hicache.testing.laws.table import NodeTable, numbers
from hicache.testing.snapshot import NodeView
from hicache.testing.violation import violation
from hicache.types import Component, Sizes, Slots


def check_sizes(table: NodeTable, sizes: Mapping[str, Sizes]) -> None:
    """LOCK-4: each component's counters equal their recomputation from nodes, locks and pools."""
    for component, pool in table.snapshot.pools.items():
        held = [node.slots[component] for node in table.snapshot.nodes]
        counts = numbers([0 if slots is None else len(slots) for slots in held])
        locked = table.locks[component] > 0
        evictable, protected = int(counts[~locked].sum()), int(counts[locked].sum())
        expected = Sizes(evictable=evictable, protected=protected, free=len(pool.free))
        if sizes[component] != expected:
            raise violation("LOCK-4", f"size counters of {component}", expected, sizes[component])


def check_partners(table: NodeTable, partners: Callable[[Slots], Slots]) -> None:
    """POOL-5: a node's FULL slots map to its SWA slots, and to 0 where it is an SWA tombstone."""
    nodes = [node for node in table.snapshot.nodes if node.slots[Component.FULL] is not None]
    full = batches(_full(node) for node in nodes)
    expected = batches(_window(node) for node in nodes)
    for slots, wanted in zip(full, expected, strict=True):
        actual = partners(slots)
        if not np.array_equal(actual, wanted):
            first = int((actual != wanted).argmax()) if actual.shape == wanted.shape else 0
            place = f"SWA partners from FULL slot {slots[first]} on"
            raise violation("POOL-5", place, wanted[first : first + 8].tolist(), actual[first : first + 8].tolist())


def _full(node: NodeView) -> Slots:
    slots = node.slots[Component.FULL]
    assert slots is not None, "only nodes with FULL data are asked"
    return slots


def _window(node: NodeView) -> Slots:
    slots = node.slots[Component.SWA]
    return np.zeros(node.end - node.start, dtype=np.int64) if slots is None else slots
