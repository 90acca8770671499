"""Every slot of a pool has exactly one owner, and whole pages stay together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.laws.batches import batches
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, PADDING_SLOT, Component, Slots, Tier, TransferKind

Owners = npt.NDArray[np.uint8]
"""The owner of each slot of a pool, by slot number: NO_OWNER, FREE, TREE, CALLER, TRANSFER, KEPT or FETCH."""

Ownership = Mapping[Tier, Mapping[str, Owners]]
"""The owner of each slot, by tier and component."""

NO_OWNER, FREE, TREE, CALLER, TRANSFER, KEPT, FETCH = range(7)
OWNER_NAMES = (
    "no owner",
    "the free list",
    "the tree",
    "the caller",
    "a transfer",
    "a load that has ended",
    "a prefetch",
)

Parts = Mapping[int, Sequence[Slots]]
"""The slots of a pool, by owner."""


def node_slots(nodes: Iterable[NodeView | HostNodeView], component: str) -> list[Slots]:
    """The slots of a component that the nodes hold on one tier, node by node."""
    return [slots for node in nodes if (slots := node.slots[component]) is not None]


def check_owners(snapshot: Snapshot, config: CacheConfig, held: Mapping[str, Slots]) -> Ownership:
    """POOL-1: the slots of the free list, the tree, the caller and the transfers partition each pool."""
    host = snapshot.host
    device = {
        component: _owners_of(pool, component, config, Tier.DEVICE, _device_parts(snapshot, component, held))
        for component, pool in snapshot.pools.items()
    }
    if host is None:
        return {Tier.DEVICE: device}
    below = {
        component: _owners_of(pool, component, config, Tier.HOST, _host_parts(snapshot, host, component))
        for component, pool in host.pools.items()
    }
    return {Tier.DEVICE: device, Tier.HOST: below}


def targets(host: HostView, kind: TransferKind, component: str) -> list[Slots]:
    """The target slots of a component in transfers of a kind: on the device for loads, on the host for backups."""
    ends = [one.device if kind is TransferKind.LOAD else one.host for one in host.transfers if one.kind is kind]
    return [end[component] for end in ends if component in end]


def _device_parts(snapshot: Snapshot, component: str, held: Mapping[str, Slots]) -> Parts:
    parts = {
        FREE: [snapshot.pools[component].free],
        TREE: node_slots(snapshot.nodes, component),
        CALLER: [held[component]],
    }
    if snapshot.host is not None:
        parts[TRANSFER] = targets(snapshot.host, TransferKind.LOAD, component)
        parts[KEPT] = [snapshot.host.kept.get(component, NO_SLOTS)]
    return parts


def _host_parts(snapshot: Snapshot, host: HostView, component: str) -> Parts:
    fetches = () if snapshot.storage is None else snapshot.storage.fetches
    return {
        FETCH: [fetch.host[component] for fetch in fetches if component in fetch.host],
        FREE: [host.pools[component].free],
        TREE: node_slots(host.nodes, component),
        TRANSFER: targets(host, TransferKind.BACKUP, component),
    }


def _owners_of(pool: PoolView, component: str, config: CacheConfig, tier: Tier, parts: Parts) -> Owners:
    place = f"pool of {component}" if tier is Tier.DEVICE else f"host pool of {component}"
    owners = _owners(place, parts, 1 if component == Component.MAMBA else config.page_size)
    _require_counts(place, owners, parts, pool.capacity)
    if component != Component.MAMBA and config.page_size > 1:
        _require_whole_pages(place, owners, parts, config.page_size)
    return owners


def _owners(place: str, parts: Parts, page_size: int) -> Owners:
    ends = [(int(slots.min()), int(slots.max())) for slots in batches(chain.from_iterable(parts.values()))]
    lowest = min((low for low, _ in ends), default=1)
    if lowest <= PADDING_SLOT:
        raise violation("POOL-1", place, "slots above 0, the padding slot", lowest)
    highest = max((high for _, high in ends), default=0)
    owners: Owners = np.zeros(-(-(highest + 1) // page_size) * page_size, dtype=np.uint8)
    for owner, arrays in parts.items():
        for slots in batches(arrays):
            _mark(place, owners, slots, owner)
    return owners


def _mark(place: str, owners: Owners, slots: Slots, owner: int) -> None:
    before = owners[slots]
    if before.any():
        first = int(before.argmax())
        expected = f"one owner, {OWNER_NAMES[int(before[first])]}"
        raise violation("POOL-1", f"{place}, slot {slots[first]}", expected, OWNER_NAMES[owner] + " as well")
    owners[slots] = owner


def _require_counts(place: str, owners: Owners, parts: Parts, capacity: int) -> None:
    named = {OWNER_NAMES[owner]: sum(len(slots) for slots in arrays) for owner, arrays in parts.items()}
    if sum(named.values()) == np.count_nonzero(owners) == capacity:
        return
    found = {OWNER_NAMES[owner]: int(np.count_nonzero(owners == owner)) for owner in parts}
    if named != found:
        raise violation("POOL-1", place, f"each slot once: {found}", f"{named}, with slots listed twice")
    if sum(found.values()) != capacity:
        raise violation("POOL-1", place, f"{capacity} slots with an owner", found)


def _require_whole_pages(place: str, owners: Owners, parts: Parts, page_size: int) -> None:
    """POOL-4: a page has one owner, and the tree, transfers and prefetches hold its slots in order."""
    pages = owners.reshape(-1, page_size)
    torn = (pages != pages[:, :1]).any(axis=1)
    if torn.any():
        page = int(torn.argmax())
        raise violation("POOL-4", f"{place}, page {page}", "one owner", [OWNER_NAMES[owner] for owner in pages[page]])
    for owner in (TREE, TRANSFER, FETCH):
        for slots in batches(parts.get(owner, ())):
            require_pages(slots, page_size, f"{place}, slots of {OWNER_NAMES[owner]}")


def require_pages(slots: Slots, page_size: int, place: str) -> None:
    """Raise InvariantError unless the slots are whole aligned pages in order (POOL-4)."""
    if len(slots) % page_size:
        raise violation("POOL-4", place, f"whole pages of {page_size}", f"{len(slots)} slots: {slots[:64].tolist()}")
    pages = slots.reshape(-1, page_size)
    aligned = (pages[:, 0] % page_size == 0) & (pages == pages[:, :1] + np.arange(page_size)).all(axis=1)
    if not aligned.all():
        raise violation("POOL-4", place, f"aligned pages of {page_size} in order", pages[aligned.argmin()].tolist())


def all_slots(arrays: Sequence[Slots]) -> Slots:
    """Several arrays of slots as one."""
    return np.concatenate(arrays) if arrays else NO_SLOTS
