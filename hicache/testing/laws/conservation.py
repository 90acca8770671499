"""Every slot of a pool has exactly one owner, and whole pages stay together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.laws.batches import batches
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, PADDING_SLOT, Component, Slots

Owners = npt.NDArray[np.uint8]
"""Who owns each slot of a pool, by slot number: NOBODY, FREE, TREE or CALLER."""

NOBODY, FREE, TREE, CALLER = range(4)
OWNER_NAMES = ("nobody", "the free list", "the tree", "the caller")


def node_slots(snapshot: Snapshot, component: str) -> list[Slots]:
    """What the nodes of a tree hold of a component, node by node."""
    return [slots for node in snapshot.nodes if (slots := node.slots[component]) is not None]


def check_owners(snapshot: Snapshot, config: CacheConfig, held: Mapping[str, Slots]) -> dict[str, Owners]:
    """POOL-1: what is free, the tree's and the caller's is a disjoint partition of each pool."""
    owners: dict[str, Owners] = {}
    for component, pool in snapshot.pools.items():
        page_size = 1 if component == Component.MAMBA else config.page_size
        parts = {FREE: [pool.free], TREE: node_slots(snapshot, component), CALLER: [held[component]]}
        owners[component] = _owners(component, parts, page_size)
        _require_counts(component, owners[component], parts, pool.capacity)
    return owners


def _require_counts(component: str, owners: Owners, parts: Mapping[int, Sequence[Slots]], capacity: int) -> None:
    found = {OWNER_NAMES[owner]: int(np.count_nonzero(owners == owner)) for owner in parts}
    named = {OWNER_NAMES[owner]: sum(len(slots) for slots in several) for owner, several in parts.items()}
    if named != found:
        raise violation("POOL-1", f"pool of {component}", f"each slot once: {found}", f"{named} with those named twice")
    if sum(found.values()) != capacity:
        raise violation("POOL-1", f"pool of {component}", f"{capacity} slots with an owner", found)


def _owners(component: str, parts: Mapping[int, Sequence[Slots]], page_size: int) -> Owners:
    owned = [slots for several in parts.values() for slots in several if len(slots)]
    lowest = min((int(slots.min()) for slots in owned), default=1)
    if lowest <= PADDING_SLOT:
        raise violation("POOL-1", f"pool of {component}", "slots above 0, the padding slot", lowest)
    highest = max((int(slots.max()) for slots in owned), default=0)
    owners: Owners = np.zeros(-(-(highest + 1) // page_size) * page_size, dtype=np.uint8)
    for owner, several in parts.items():
        for slots in batches(several):
            _mark(component, owners, slots, owner)
    return owners


def _mark(component: str, owners: Owners, slots: Slots, owner: int) -> None:
    before = owners[slots]
    if before.any():
        first = int(before.argmax())
        expected = f"one owner, {OWNER_NAMES[int(before[first])]}"
        raise violation(
            "POOL-1", f"pool of {component}, slot {slots[first]}", expected, OWNER_NAMES[owner] + " as well"
        )
    owners[slots] = owner


def check_pages(snapshot: Snapshot, config: CacheConfig, owners: Mapping[str, Owners]) -> None:
    """POOL-4: a page has one owner as a whole, and the tree holds its slots in order."""
    for component in snapshot.pools:
        if component == Component.MAMBA:
            continue
        pages = owners[component].reshape(-1, config.page_size)
        torn = (pages != pages[:, :1]).any(axis=1)
        if torn.any():
            page = int(torn.argmax())
            place = f"pool of {component}, page {page}"
            raise violation("POOL-4", place, "one owner", [OWNER_NAMES[owner] for owner in pages[page]])
        for slots in batches(node_slots(snapshot, component)):
            require_pages(slots, config.page_size, f"{component} slots of the tree")


def require_pages(slots: Slots, page_size: int, place: str) -> None:
    """Raise InvariantError unless the slots are whole aligned pages in order (POOL-4)."""
    if len(slots) % page_size:
        raise violation("POOL-4", place, f"whole pages of {page_size}", f"{len(slots)} slots: {slots[:64].tolist()}")
    pages = slots.reshape(-1, page_size)
    aligned = (pages[:, 0] % page_size == 0) & (pages == pages[:, :1] + np.arange(page_size)).all(axis=1)
    if not aligned.all():
        raise violation("POOL-4", place, f"aligned pages of {page_size} in order", pages[aligned.argmin()].tolist())


def all_slots(several: Sequence[Slots]) -> Slots:
    """Several arrays of slots as one."""
    return np.concatenate(several) if several else NO_SLOTS
