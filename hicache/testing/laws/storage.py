"""What a cache says that it gave to storage: marks that are closed under prefixes, and true."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hicache.testing.laws.table import NodeTable, flags
from hicache.testing.snapshot import Snapshot, StorageView
from hicache.testing.violation import violation
from hicache.types import Component, Pool

Keys = Mapping[Pool, Sequence[str]]
"""The objects of a prefix, page by page, of each pool that keeps some."""


def check_marks(table: NodeTable, storage: StorageView) -> None:
    """FLOW-9: what was persisted is closed under prefixes, and of a node FULL was if anything was."""
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
    table.require("FLOW-9", full | ~some, "FULL persisted with the rest", lambda row: sorted(persisted[row]))
    parent = table.of_parent(full.astype(np.int64), 1) > 0
    table.require("FLOW-9", ~full | parent, "a parent that was persisted before", lambda _: "one that was not")


def check_no_fetch(snapshot: Snapshot) -> None:
    """FETCH-8: when nobody waits for a fetch and nothing is under way, no host slot belongs to one, nothing is pinned.

    To be asked when everything was drained.
    """
    assert snapshot.storage is not None, "a cache with storage shows it"
    assert snapshot.host is not None, "storage lies below a host tier"
    if snapshot.storage.fetches:
        held = [{name: slots.tolist() for name, slots in fetch.host.items()} for fetch in snapshot.storage.fetches]
        raise violation("FETCH-8", "host slots of fetches", "none, as nobody waits for one and nothing is asked", held)
    for row, node in enumerate(snapshot.host.nodes):
        pins = {name: count for name, count in node.host_pins.items() if count}
        if pins:
            raise violation("FLOW-7", f"node {row} on the host", "no pins, as nothing is under way", pins)


def check_kept(snapshot: Snapshot, keys_of: Callable[[int], Keys], written: Callable[[str], bool]) -> None:
    """FETCH-9: of each node there is in storage what the cache says. `keys_of`: the objects of a node's whole prefix.

    `written`: whether there was ever an object under a key.
    """
    assert snapshot.storage is not None, "a cache with storage shows it"
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
    """FLOW-9: storage has a page of KV only with all pages before it, and only where it has what follows KV's indices.

    Asked when storage never refused anything.
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
