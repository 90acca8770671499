"""The laws of slots: each has exactly one owner, whole pages stay together, and counters and mappings agree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.laws.accepted import Accepted
from hicache.testing.laws.table import batches
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, PADDING_SLOT, Component, Sizes, Slots, Tier, TransferKind

Owners = npt.NDArray[np.uint8]
"""The owner of each slot of a pool, by slot number: one of the numbers below."""

Ownership = Mapping[Tier, Mapping[str, Owners]]
"""The owner of each slot, by tier and component."""

NO_OWNER, FREE, TREE, CALLER, TRANSFER, KEPT, FETCH, ABANDONED = range(8)
OWNER_NAMES = (
    "no owner",
    "the free list",
    "the tree",
    "the caller",
    "a transfer",
    "a load that has ended",
    "a prefetch",
    "an abandoned backend",
)

Parts = Mapping[int, Sequence[Slots]]
"""The slots of a pool, by owner."""


def node_slots(nodes: Iterable[NodeView | HostNodeView], component: str) -> list[Slots]:
    """The slots of a component that the nodes hold on one tier, node by node."""
    return [slots for node in nodes if (slots := node.slots[component]) is not None]


def check_owners(snapshot: Snapshot, config: CacheConfig, held: Mapping[str, Slots]) -> Ownership:
    """POOL-1: the slots of the free list, the tree, the caller and the transfers partition each pool.

    FLOW-1: a slot of a transfer or a prefetch that has another owner too was freed or reused too early. FLOW-13: so was
    one that an abandoned backend may use.
    """
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
    abandoned = {} if snapshot.storage is None else snapshot.storage.abandoned or {}
    return {
        ABANDONED: [abandoned.get(component, NO_SLOTS)],
        FETCH: [fetch.host[component] for fetch in fetches if component in fetch.host],
        FREE: [host.pools[component].free],
        TREE: node_slots(host.nodes, component),
        TRANSFER: targets(host, TransferKind.BACKUP, component),
    }


def _owners_of(pool: PoolView, component: str, config: CacheConfig, tier: Tier, parts: Parts) -> Owners:
    place = f"pool of {component}" if tier is Tier.DEVICE else f"host pool of {component}"
    unit = 1 if component == Component.MAMBA else config.page_size
    check = partial(_checked_owners, place, parts, unit, pool.capacity)
    if pool.capacity > SMALL_POOL:
        return check()
    named = [(owner, *[slots.tobytes() for slots in arrays]) for owner, arrays in parts.items()]
    return _ACCEPTED.result((place, unit, pool.capacity, tuple(named)), check)


SMALL_POOL = 1 << 12
"""The number of slots up to which the owners of a pool are remembered, as few verbs change more than one pool."""

_ACCEPTED: Accepted[Owners] = Accepted()


def _checked_owners(place: str, parts: Parts, unit: int, capacity: int) -> Owners:
    owners = _owners(place, parts, unit)
    _require_counts(place, owners, parts, capacity)
    if unit > 1:
        _require_whole_pages(place, owners, parts, unit)
    owners.setflags(write=False)
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
        other = int(before[first])
        place, expected = f"{place}, slot {slots[first]}", f"one owner, {OWNER_NAMES[other]}"
        if ABANDONED in {owner, other}:
            raise violation("FLOW-13", place, expected, OWNER_NAMES[owner] + " as well")
        if {owner, other} & {TRANSFER, FETCH}:
            raise violation("FLOW-1", place, expected, OWNER_NAMES[owner] + " as well")
        raise violation("POOL-1", place, expected, OWNER_NAMES[owner] + " as well")
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
