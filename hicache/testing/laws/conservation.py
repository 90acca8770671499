"""Every slot of a pool has exactly one owner, whole pages stay together, and the counters say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.laws.table import Flags, NodeTable
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, PADDING_SLOT, Component, Sizes, Slots


def tree_slots(snapshot: Snapshot, component: str) -> Slots:
    """All slots of a component that the tree's nodes hold, in the order of the nodes."""
    held = [slots for node in snapshot.nodes if (slots := node.slots[component]) is not None]
    return np.concatenate(held) if held else NO_SLOTS


def check_owners(snapshot: Snapshot, held: Mapping[str, Slots]) -> dict[str, Flags]:
    """POOL-1: free, tree and caller partition each pool. Returns which slots each pool has, by slot number."""
    pools: dict[str, Flags] = {}
    for component, pool in snapshot.pools.items():
        owners = {"free": pool.free, "tree": tree_slots(snapshot, component), "caller": held[component]}
        slots = np.concatenate(list(owners.values()))
        if len(slots) and int(slots.min()) <= PADDING_SLOT:
            raise violation("POOL-1", f"pool of {component}", "slots above 0, the padding slot", int(slots.min()))
        counts = np.bincount(slots, minlength=1)
        _require_one_owner(component, counts.argmax(), int(counts.max()), owners)
        if len(slots) != pool.capacity:
            sizes = {owner: len(owned) for owner, owned in owners.items()}
            raise violation(
                "POOL-1", f"pool of {component}", f"{pool.capacity} slots with an owner", f"{len(slots)}: {sizes}"
            )
        pools[component] = counts.astype(np.bool_)
    return pools


def _require_one_owner(component: str, slot: np.intp, count: int, owners: Mapping[str, Slots]) -> None:
    if count > 1:
        named = {owner: int((owned == slot).sum()) for owner, owned in owners.items()}
        raise violation("POOL-1", f"pool of {component}, slot {slot}", "one owner", f"{count}: {named}")


def check_pages(snapshot: Snapshot, config: CacheConfig, held: Mapping[str, Slots]) -> None:
    """POOL-4: pages are whole and aligned, in order on a node, as a set among the free and the caller's."""
    for component, pool in snapshot.pools.items():
        if component == Component.MAMBA:
            continue
        require_pages(tree_slots(snapshot, component), config.page_size, f"{component} slots of the tree")
        require_pages(np.sort(pool.free), config.page_size, f"free {component} slots")
        require_pages(np.sort(held[component]), config.page_size, f"{component} slots of the caller")


def require_pages(slots: Slots, page_size: int, place: str) -> None:
    """Raise InvariantError unless the slots are whole aligned pages in order (POOL-4)."""
    if len(slots) % page_size:
        raise violation("POOL-4", place, f"whole pages of {page_size}", f"{len(slots)} slots: {slots[:64].tolist()}")
    pages = slots.reshape(-1, page_size)
    aligned = (pages[:, 0] % page_size == 0) & (pages == pages[:, :1] + np.arange(page_size)).all(axis=1)
    if not aligned.all():
        raise violation("POOL-4", place, f"aligned pages of {page_size} in order", pages[aligned.argmin()].tolist())


def check_sizes(table: NodeTable, sizes: Mapping[str, Sizes]) -> None:
    """LOCK-4: each component's counters equal their recomputation from nodes, locks and pools."""
    for component, pool in table.snapshot.pools.items():
        counts = np.array([_length(node.slots[component]) for node in table.snapshot.nodes], dtype=np.int64)
        locked = table.locks[component] > 0
        expected = Sizes(evictable=int(counts[~locked].sum()), protected=int(counts[locked].sum()), free=len(pool.free))
        if sizes[component] != expected:
            raise violation("LOCK-4", f"size counters of {component}", expected, sizes[component])


def check_partners(table: NodeTable, partners: Callable[[Slots], Slots]) -> None:
    """POOL-5: FULL slots map to the SWA slots of their node, and to 0 on an SWA tombstone."""
    full = tree_slots(table.snapshot, Component.FULL)
    parts = [
        np.zeros(_length(node.slots[Component.FULL]), dtype=np.int64)
        if (own := node.slots[Component.SWA]) is None
        else own
        for node in table.snapshot.nodes
    ]
    expected = np.concatenate(parts) if parts else NO_SLOTS
    actual = partners(full)
    if not np.array_equal(expected, actual):
        first = int((expected != actual).argmax()) if expected.shape == actual.shape else 0
        place = f"SWA partners of the tree's FULL slots, first at slot {full[first : first + 1].tolist()}"
        raise violation("POOL-5", place, expected[first : first + 8].tolist(), actual[first : first + 8].tolist())


def _length(slots: Slots | None) -> int:
    return 0 if slots is None else len(slots)
