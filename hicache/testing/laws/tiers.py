"""The laws of lower tiers: what transfers, prefetches and stored pages may use, and what they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hicache.testing.laws.slots import OWNER_NAMES, TREE, Ownership, all_slots
from hicache.testing.laws.table import Flags, NodeTable, TierColumns, flags
from hicache.testing.snapshot import HostView, Snapshot, StorageView, TransferView
from hicache.testing.violation import violation
from hicache.types import Component, Pool, Slots, Tier, TransferKind

SOURCE = {TransferKind.BACKUP: Tier.DEVICE, TransferKind.LOAD: Tier.HOST}
"""The tier that a transfer reads from."""


def check_transfers(table: NodeTable, host: HostView, owners: Ownership) -> None:
    """FLOW-1: the slots that a transfer reads belong to the tree, and are locked there until it is applied."""
    for number, transfer in enumerate(host.transfers):
        _require_pairs(number, transfer)
        for component, slots in _sources(transfer).items():
            known = owners[SOURCE[transfer.kind]][component]
            owner = known[np.minimum(slots, len(known) - 1)]
            if (owner != TREE).any():
                first = int((owner != TREE).argmax())
                raise violation(
                    "FLOW-1",
                    f"source of transfer {number}, {transfer.kind.value}, {component} slot {slots[first]}",
                    OWNER_NAMES[TREE],
                    OWNER_NAMES[owner[first]],
                )
    for columns in table.tiers:
        _require_pins(table, columns, [one for one in host.transfers if SOURCE[one.kind] is columns.tier])


def check_idle(table: NodeTable, host: HostView, *, is_persisting: bool) -> None:
    """FLOW-7: with nothing in flight and no load that a caller waits for, no node is pinned and no slot is kept.

    `is_persisting`: storage may be reading from the host.
    """
    for columns in [table.device] if is_persisting else table.tiers:
        for component, pins in columns.pins.items():
            expected = f"no pins of {component}{columns.where} while nothing is in flight"
            table.require("FLOW-7", pins == 0, expected, pins.__getitem__)
    kept = {component: slots.tolist() for component, slots in host.kept.items() if len(slots)}
    if kept:
        raise violation("FLOW-7", "slots kept for loads that have ended", "none, as no caller waits for a load", kept)


def _sources(transfer: TransferView) -> dict[str, Slots]:
    return dict(transfer.device if transfer.kind is TransferKind.BACKUP else transfer.host)


def _require_pairs(number: int, transfer: TransferView) -> None:
    device = {component: len(slots) for component, slots in transfer.device.items()}
    host = {component: len(slots) for component, slots in transfer.host.items()}
    if device != host or not any(device.values()):
        raise violation("FLOW-1", f"transfer {number}", f"as many slots on the host as on the device: {device}", host)


def _require_pins(table: NodeTable, columns: TierColumns, transfers: Sequence[TransferView]) -> None:
    """HOST-3: a node is locked on the device while it is backed up, and the source of a load is locked on the host."""
    if not transfers:
        return
    for component in columns.held:
        read = all_slots([slots for one in transfers if (slots := _sources(one).get(component)) is not None])
        is_read = np.zeros(1 + int(read.max(initial=0)), dtype=np.bool_)
        is_read[read] = True
        reads = flags([_reads(is_read, view.slots[component]) for view in columns.views])
        locking = component if columns.tier is Tier.HOST else Component.FULL.value
        expected = f"a pin of {locking}{columns.where} while a transfer reads its {component} slots"
        table.require("HOST-3", ~reads | (columns.pins[locking] > 0), expected, lambda _: "none")


def _reads(is_read: Flags, slots: Slots | None) -> bool:
    return slots is not None and bool(is_read[slots[slots < len(is_read)]].any())


Keys = Mapping[str, Sequence[str]]
"""The object keys of a prefix, page by page, for each pool that is stored."""


def check_marks(table: NodeTable, storage: StorageView) -> None:
    """FLOW-9: the stored nodes are closed under prefixes, and a node with any stored component has FULL stored."""
    persisted = storage.persisted
    if persisted is None:
        return
    if len(persisted) != len(table.parent):
        raise violation("FLOW-9", "snapshot of storage", f"{len(table.parent)} nodes", len(persisted))
    unknown = [sorted(marks) for marks in persisted if not marks <= table.device.held.keys()]
    if unknown:
        raise violation("FLOW-9", "snapshot of storage", f"components {sorted(table.device.held)}", unknown[0])
    full = flags([Component.FULL in marks for marks in persisted])
    some = flags([bool(marks) for marks in persisted])
    table.require("FLOW-9", full | ~some, "FULL stored with the rest", lambda row: sorted(persisted[row]))
    parent = table.of_parent(full.astype(np.int64), 1) > 0
    table.require("FLOW-9", ~full | parent, "a parent that is stored", lambda _: "one that is not")


def check_no_fetch(snapshot: Snapshot) -> None:
    """FETCH-8: when no caller waits for a prefetch and nothing is in flight, none holds or pins host slots.

    To be called after a drain. While an abandoned backend is in a call, nodes that it reads from stay pinned.
    """
    assert snapshot.storage is not None, "the snapshot of a cache with storage has a storage view"
    assert snapshot.host is not None, "a storage tier needs a host tier"
    if snapshot.storage.fetches:
        held = [{name: slots.tolist() for name, slots in fetch.host.items()} for fetch in snapshot.storage.fetches]
        raise violation("FETCH-8", "host slots of prefetches", "none, as no caller waits for a prefetch", held)
    if snapshot.storage.abandoned is not None:
        return
    for row, node in enumerate(snapshot.host.nodes):
        pins = {name: count for name, count in node.host_pins.items() if count}
        if pins:
            raise violation("FLOW-7", f"node {row} on the host", "no pins, as nothing is in flight", pins)


def check_kept(
    snapshot: Snapshot, pools: Mapping[str, str], keys_of: Callable[[int], Keys], written: Callable[[str], bool]
) -> None:
    """FETCH-9: the pages that a node reports as stored are in storage. `pools`: the component of each stored pool.

    `keys_of`: the object keys of a node's prefix. `written`: whether an object was ever written under a key.
    """
    assert snapshot.storage is not None, "the snapshot of a cache with storage has a storage view"
    for row, marks in enumerate(snapshot.storage.persisted or ()):
        node = snapshot.nodes[row]
        for pool, keys in keys_of(row).items() if marks else ():
            if pools[pool] in marks:
                pages = len(keys) * node.start // node.end
                own = keys[-1:] if pools[pool] == Component.MAMBA else keys[pages:]
                missing = [key for key in own if not written(key)]
                if missing:
                    place = f"node {row} (elements {node.start}..{node.end})"
                    raise violation("FETCH-9", place, f"its {len(own)} objects of {pool} in storage", missing)


def check_order(
    snapshot: Snapshot, pools: Mapping[str, str], keys_of: Callable[[int], Keys], written: Callable[[str], bool]
) -> None:
    """FLOW-9: a KV page is in storage only with all pages before it, and with the pools that follow KV's indices.

    `pools`: the component of each stored pool. Valid only when storage has refused no write.
    """
    for row in range(len(snapshot.nodes)):
        keys = keys_of(row)
        kept = [written(key) for key in keys[Pool.KV]]
        if True in kept[kept.index(False) :] if False in kept else False:
            raise violation("FLOW-9", f"KV in storage of the prefix of node {row}", "no gap", kept)
        for pool in (pool for pool, component in pools.items() if component == Component.FULL):
            beside = [written(key) for key in keys[pool]]
            if any(own and not other for own, other in zip(kept, beside, strict=True)):
                raise violation("FLOW-9", f"{pool} in storage of the prefix of node {row}", f"as KV: {kept}", beside)
