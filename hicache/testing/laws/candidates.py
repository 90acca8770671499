"""The nodes that a host eviction may evict, to detect one that stops too early."""

from __future__ import annotations

from hicache.testing.laws.residency import RANKS
from hicache.testing.snapshot import Snapshot
from hicache.types import Component


def host_candidates(snapshot: Snapshot, component: str) -> list[int]:
    """EVICT-8: the rows of nodes whose host data of a component can be evicted; none while transfers are in flight.

    FULL is evicted together with all host data of the node, if no lock protects it and no child has host data. SWA and
    MAMBA are evicted if neither they nor a component after them on the same node is locked on the host.
    """
    host = snapshot.host
    if host is None or host.transfers:
        return []
    lower = [name for name in RANKS[RANKS.index(component) :] if name in host.pools]
    backed = {
        snapshot.nodes[row].parent for row, view in enumerate(host.nodes) if view.slots[Component.FULL] is not None
    }
    return [
        row
        for row, view in enumerate(host.nodes)
        if view.slots[component] is not None
        and not any(view.locks[name] for name in lower)
        and (component != Component.FULL or (row not in backed and _may_leave_the_host(snapshot, row)))
    ]


def _may_leave_the_host(snapshot: Snapshot, row: int) -> bool:
    node = snapshot.nodes[row]
    return node.slots[Component.FULL] is not None or not any(node.locks.values())
