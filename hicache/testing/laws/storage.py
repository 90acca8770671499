"""What a cache reports as stored: closed under prefixes, and present in storage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hicache.testing.laws.table import NodeTable, flags
from hicache.testing.snapshot import Snapshot, StorageView
from hicache.testing.violation import violation
from hicache.types import Component, Pool

Keys = Mapping[Pool, Sequence[str]]
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

    To be called after a drain.
    """
    assert snapshot.storage is not None, "the snapshot of a cache with storage has a storage view"
    assert snapshot.host is not None, "a storage tier needs a host tier"
    if snapshot.storage.fetches:
        held = [{name: slots.tolist() for name, slots in fetch.host.items()} for fetch in snapshot.storage.fetches]
        raise violation("FETCH-8", "host slots of prefetches", "none, as no caller waits for a prefetch", held)
    for row, node in enumerate(snapshot.host.nodes):
        pins = {name: count for name, count in node.host_pins.items() if count}
        if pins:
            raise violation("FLOW-7", f"node {row} on the host", "no pins, as nothing is in flight", pins)


def check_kept(snapshot: Snapshot, keys_of: Callable[[int], Keys], written: Callable[[str], bool]) -> None:
    """FETCH-9: the pages that a node reports as stored are in storage. `keys_of`: the object keys of a node's prefix.

    `written`: whether an object was ever written under a key.
    """
    assert snapshot.storage is not None, "the snapshot of a cache with storage has a storage view"
    for row, marks in enumerate(snapshot.storage.persisted or ()):
        node = snapshot.nodes[row]
        for pool, keys in keys_of(row).items() if marks else ():
            if _COMPONENT[pool] in marks:
                pages = len(keys) * node.start // node.end
                own = keys[-1:] if pool is Pool.MAMBA else keys[pages:]
                missing = [key for key in own if not written(key)]
                if missing:
                    place = f"node {row} (elements {node.start}..{node.end})"
                    raise violation("FETCH-9", place, f"its {len(own)} objects of {pool.value} in storage", missing)


def check_order(snapshot: Snapshot, keys_of: Callable[[int], Keys], written: Callable[[str], bool]) -> None:
    """FLOW-9: a KV page is in storage only with all pages before it, and with the pools that follow KV's indices.

    Valid only when storage has refused no write.
    """
    for row in range(len(snapshot.nodes)):
        keys = keys_of(row)
        kept = [written(key) for key in keys[Pool.KV]]
        if True in kept[kept.index(False) :] if False in kept else False:
            raise violation("FLOW-9", f"KV in storage of the prefix of node {row}", "no gap", kept)
        beside = [written(key) for key in keys.get(Pool.INDEXER, ())]
        if any(own and not other for own, other in zip(kept, beside, strict=False)):
            raise violation("FLOW-9", f"indexer in storage of the prefix of node {row}", f"as KV: {kept}", beside)


_COMPONENT = {
    Pool.KV: Component.FULL,
    Pool.INDEXER: Component.FULL,
    Pool.SWA: Component.SWA,
    Pool.MAMBA: Component.MAMBA,
}
