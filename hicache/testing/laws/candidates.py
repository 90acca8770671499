"""Which nodes a host eviction may take, so that it is seen when one stops before the last of them."""

from __future__ import annotations

from hicache.testing.laws.residency import RANKS
from hicache.testing.snapshot import Snapshot
from hicache.types import Component


def host_candidates(snapshot: Snapshot, component: str) -> list[int]:
    """EVICT-8: the rows of nodes whose host data of a component may go; none while transfers may hold on to it.

    FULL goes with all host data of a node that no lock protects and below which nothing is on the host. Of SWA and
    MAMBA goes what is not locked on the host, nor anything of lower rank on the same node.
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
