"""The size counters and the mapping from FULL to SWA that a cache reports, compared with its snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hicache.testing.laws.batches import batches
from hicache.testing.laws.conservation import all_slots, targets
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Component, Sizes, Slots, TransferKind


def check_sizes(snapshot: Snapshot, sizes: Mapping[str, Sizes]) -> None:
    """LOCK-4: each component's size counters equal their recomputation from nodes, locks and pools."""
    _check_sizes("size counters", snapshot.pools, snapshot.nodes, sizes)


def check_host_sizes(host: HostView, sizes: Mapping[str, Sizes]) -> None:
    """LOCK-4: the same for the size counters of the host."""
    _check_sizes("host size counters", host.pools, host.nodes, sizes)


def _check_sizes(
    name: str, pools: Mapping[str, PoolView], nodes: Sequence[NodeView | HostNodeView], sizes: Mapping[str, Sizes]
) -> None:
    for component, pool in pools.items():
        total = {True: 0, False: 0}
        for node in nodes:
            total[node.locks[component] > 0] += len(_slots(node, component))
        expected = Sizes(evictable=total[False], protected=total[True], free=len(pool.free))
        if sizes[component] != expected:
            raise violation("LOCK-4", f"{name} of {component}", expected, sizes[component])


def check_partners(snapshot: Snapshot, partners: Callable[[Slots], Slots]) -> None:
    """POOL-5: FULL slots map to the node's SWA slots, or to 0 at an SWA tombstone; free FULL slots map to 0.

    The FULL slots of a tombstone may also map to the target slots of a load, for readers that follow it layer by layer.
    """
    arriving = [] if snapshot.host is None else targets(snapshot.host, TransferKind.LOAD, Component.SWA)
    full = batches(_slots(node, Component.FULL) for node in snapshot.nodes)
    expected = batches(_window(node) for node in snapshot.nodes)
    for slots, wanted in zip(full, expected, strict=True):
        require_partners(slots, wanted, _without(all_slots(arriving), partners) if arriving else partners)
    free = snapshot.pools[Component.FULL].free
    require_partners(free, np.zeros_like(free), partners)


def require_partners(slots: Slots, expected: Slots, partners: Callable[[Slots], Slots]) -> None:
    """Raise InvariantError, naming the first FULL slot that differs, unless these slots have these SWA partners."""
    actual = partners(slots)
    if not np.array_equal(actual, expected):
        first = int((actual != expected).argmax()) if actual.shape == expected.shape else 0
        place = f"SWA partners from FULL slot {slots[first]} on"
        raise violation("POOL-5", place, expected[first : first + 8].tolist(), actual[first : first + 8].tolist())


def _without(arriving: Slots, partners: Callable[[Slots], Slots]) -> Callable[[Slots], Slots]:
    """The mapping to partners without the target slots of loads."""

    def without(slots: Slots) -> Slots:
        found = partners(slots)
        return np.where(np.isin(found, arriving), 0, found)

    return without


def _slots(node: NodeView | HostNodeView, component: str) -> Slots:
    slots = node.slots[component]
    return NO_SLOTS if slots is None else slots


def _window(node: NodeView) -> Slots:
    window = node.slots[Component.SWA]
    return np.zeros_like(_slots(node, Component.FULL)) if window is None else window
