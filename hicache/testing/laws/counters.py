"""What a cache says about itself: size counters and the mapping from FULL to SWA, against what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hicache.testing.laws.batches import batches
from hicache.testing.snapshot import NodeView, Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Component, Sizes, Slots


def check_sizes(snapshot: Snapshot, sizes: Mapping[str, Sizes]) -> None:
    """LOCK-4: each component's counters equal their recomputation from nodes, locks and pools."""
    for component, pool in snapshot.pools.items():
        total = {True: 0, False: 0}
        for node in snapshot.nodes:
            total[node.locks[component] > 0] += len(_slots(node, component))
        expected = Sizes(evictable=total[False], protected=total[True], free=len(pool.free))
        if sizes[component] != expected:
            raise violation("LOCK-4", f"size counters of {component}", expected, sizes[component])


def check_partners(snapshot: Snapshot, partners: Callable[[Slots], Slots]) -> None:
    """POOL-5: a node's FULL slots map to its SWA slots, and to 0 where it is an SWA tombstone; free ones map to 0."""
    full = batches(_slots(node, Component.FULL) for node in snapshot.nodes)
    expected = batches(_window(node) for node in snapshot.nodes)
    for slots, wanted in zip(full, expected, strict=True):
        require_partners(slots, wanted, partners)
    free = snapshot.pools[Component.FULL].free
    require_partners(free, np.zeros_like(free), partners)


def require_partners(slots: Slots, expected: Slots, partners: Callable[[Slots], Slots]) -> None:
    """Raise InvariantError, naming the first FULL slot that differs, unless these slots have these SWA partners."""
    actual = partners(slots)
    if not np.array_equal(actual, expected):
        first = int((actual != expected).argmax()) if actual.shape == expected.shape else 0
        place = f"SWA partners from FULL slot {slots[first]} on"
        raise violation("POOL-5", place, expected[first : first + 8].tolist(), actual[first : first + 8].tolist())


def _slots(node: NodeView, component: str) -> Slots:
    slots = node.slots[component]
    return NO_SLOTS if slots is None else slots


def _window(node: NodeView) -> Slots:
    window = node.slots[Component.SWA]
    return np.zeros_like(_slots(node, Component.FULL)) if window is None else window
