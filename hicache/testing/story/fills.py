"""Fill: who owns the pages of one pool on one tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from hicache.testing.snapshot import HostView, PoolView, Snapshot
from hicache.types import Component, Tier, TransferKind


class Owner(str, Enum):
    """Who owns a page. The value is the sign in a text drawing."""

    TREE = "■"
    TRANSFER = "○"
    REQUEST = "□"
    FREE = "·"


@dataclass(frozen=True, slots=True)
class Fill:
    """The number of pages of a pool (for MAMBA: states) by owner."""

    component: str
    tier: Tier
    pages: Mapping[Owner, int]


def fills(snapshot: Snapshot, host: HostView, page_size: int) -> Iterator[Fill]:
    """The fill of every pool, device pools first. Slots that belong to no one else are those of a request."""
    for tier, pools in ((Tier.DEVICE, snapshot.pools), (Tier.HOST, host.pools)):
        nodes = snapshot.nodes if tier is Tier.DEVICE else host.nodes
        for component, pool in pools.items():
            in_tree = sum(len(held) for node in nodes if (held := node.slots[component]) is not None)
            unit = 1 if component == Component.MAMBA else page_size
            yield Fill(component, tier, _shares(pool, in_tree, _moving(host, tier, component), unit))


def _shares(pool: PoolView, in_tree: int, moving: int, unit: int) -> Mapping[Owner, int]:
    free = len(pool.free)
    return {
        Owner.TREE: in_tree // unit,
        Owner.TRANSFER: moving // unit,
        Owner.REQUEST: (pool.capacity - free - in_tree - moving) // unit,
        Owner.FREE: free // unit,
    }


def _moving(host: HostView, tier: Tier, component: str) -> int:
    """Slots that a transfer fills, or that are kept for the readers of a load-back that has ended."""
    kind = TransferKind.LOAD if tier is Tier.DEVICE else TransferKind.BACKUP
    ends = [one.device if tier is Tier.DEVICE else one.host for one in host.transfers if one.kind is kind]
    kept = host.kept if tier is Tier.DEVICE else {}
    return sum(len(slots[component]) for slots in (*ends, kept) if component in slots)
