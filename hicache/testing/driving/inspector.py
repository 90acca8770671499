"""Inspector: checks the whole cache after a verb against every law, against its earlier state and its storage."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clauses_not_checked
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.ledger import Ledger, LockBook
from hicache.testing.driving.pools import component_of
from hicache.testing.driving.running import RunningRequest
from hicache.testing.laws import check_laws
from hicache.testing.laws.slots import (
    TREE,
    Owners,
    Ownership,
    all_slots,
    check_host_sizes,
    check_partners,
    check_sizes,
    node_slots,
    require_partners,
)
from hicache.testing.laws.tiers import Keys, check_kept, check_order
from hicache.testing.laws.tree import check_receipts
from hicache.testing.snapshot import Snapshot
from hicache.testing.storage.scripted import store_of
from hicache.testing.violation import violation
from hicache.types import Component, Key, Namespace, Slots, Tier


def check_counters(snapshot: Snapshot, adapter: CacheAdapter, config: CacheConfig) -> None:
    """Raise InvariantError unless the size counters and the SWA partners are those of the snapshot."""
    if Capability.SIZES in adapter.capabilities:
        check_sizes(snapshot, adapter.sizes())
        if snapshot.host is not None:
            check_host_sizes(snapshot.host, adapter.host_sizes())
    if Component.SWA in config.components:
        check_partners(snapshot, adapter.partners)


class Inspector:
    """Checks one adapter against what its driver holds, as far as the adapter's capabilities allow."""

    def __init__(
        self,
        adapter: CacheAdapter,
        config: CacheConfig,
        ledger: Ledger,
        locks: LockBook,
        host_locks: LockBook,
        contents: Contents,
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._ledger = ledger
        self._locks = locks
        self._host_locks = host_locks
        self._contents = contents
        self._objects = Objects(adapter, config)
        self._pools: dict[tuple[Tier, str], npt.NDArray[np.bool_]] = {}
        self._owners: dict[tuple[Tier, str], Owners] = {}

    def check(self, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        """Raise InvariantError unless laws, counters, mappings, locks and bytes are right.

        `running`: the running requests. `is_awaited`: a caller waits for a load or a prefetch.
        """
        if Capability.SNAPSHOT in self._adapter.capabilities:
            is_awaited |= any(request.is_loading for request in running)
            self._check_snapshot(self._adapter.snapshot(), running, is_awaited=is_awaited)
        self._adapter.sanity_check()

    def _check_snapshot(self, snapshot: Snapshot, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        held = self._held(snapshot, running)
        departures = clauses_not_checked(self._adapter.profile, self._adapter.departures)
        owners = check_laws(snapshot, self._config, held, is_awaited=is_awaited, departures=departures)
        check_receipts(snapshot, len(self._locks))
        check_counters(snapshot, self._adapter, self._config)
        if Component.SWA in self._config.components:
            require_partners(*self._ledger.partners(), self._adapter.partners)
        self._require_same_pools(owners)
        self._locks.check(snapshot)
        if snapshot.host is not None:
            self._host_locks.check(snapshot)
        if snapshot.storage is not None:
            self._objects.check(snapshot)
        for request in running:
            self._require_protection(request, owners[Tier.DEVICE][Component.FULL])
        self._contents.verify_tree(snapshot)

    def _held(self, snapshot: Snapshot, running: Collection[RunningRequest]) -> dict[str, Slots]:
        """The slots in the ledger, and those in the requests' tables that do not belong to the tree."""
        held = self._ledger.held()
        if not running:
            return held
        in_tree = self._in_tree(snapshot, running)
        own = all_slots([request.own_slots(in_tree) for request in running])
        held[Component.FULL] = np.concatenate((held[Component.FULL], own))
        if Component.SWA in held:
            partners = self._adapter.partners(own)
            held[Component.SWA] = np.concatenate((held[Component.SWA], partners[partners != 0]))
        if Component.MAMBA in held:
            states = [request.state for request in running if request.state is not None]
            held[Component.MAMBA] = np.concatenate((held[Component.MAMBA], np.array(states, dtype=np.int64)))
        return held

    def _in_tree(self, snapshot: Snapshot, running: Collection[RunningRequest]) -> npt.NDArray[np.bool_]:
        held = node_slots(snapshot.nodes, Component.FULL)
        several = [*held, *(request.table for request in running)]
        in_tree = np.zeros(1 + max((int(slots.max()) for slots in several if len(slots)), default=0), dtype=np.bool_)
        for slots in held:
            in_tree[slots] = True
        return in_tree

    def _require_same_pools(self, owners: Ownership) -> None:
        for tier, by_component in owners.items():
            for component, owner in by_component.items():
                # The owners of a pool that no verb has changed are the same array (`check_owners`).
                if self._owners.get((tier, component)) is owner:
                    continue
                self._owners[tier, component] = owner
                known = self._pools.setdefault((tier, component), owner > 0)
                if not np.array_equal(known, owner > 0):
                    always, now = np.flatnonzero(known).tolist(), np.flatnonzero(owner).tolist()
                    place = f"pool of {component}, {tier.value}"
                    raise violation("POOL-1", place, f"the same slots as before: {always}", now)

    def _require_protection(self, request: RunningRequest, owners: Owners) -> None:
        """REQ-1: a request locks the slots that it shares with the tree; while it waits for a load, the load does."""
        protected = self._locks.protected(request.owner, Component.FULL)
        if protected is None or request.is_loading:
            return
        shared = request.table[owners[request.table] == TREE]
        bare = shared[~np.isin(shared, protected)]
        if len(bare):
            place = f"shared slots of a request of {len(request.key.tokens)} tokens"
            raise violation("REQ-1", place, f"a lock on all of {shared.tolist()}", f"no lock on {bare.tolist()}")


class Objects:
    """The object keys of one cache, and its store. Checks nothing when the store cannot be read."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._bigram = config.bigram
        # With MLA one rank of the group writes for all, to a store that the other ranks may not see.
        is_shared = config.model is not None and config.model.is_mla and config.topology.tp_size > 1
        self._store = None if is_shared else store_of(config)
        self._known: dict[tuple[Namespace, bytes], Keys] = {}
        self._pools = component_of(config)

    def check(self, snapshot: Snapshot) -> None:
        """Raise InvariantError unless every page marked as stored is in the store, written in the required order."""
        store = self._store
        if store is None:
            return

        def keys_of(row: int) -> Keys:
            return self._keys(snapshot.nodes[row].namespace, snapshot.prefix(row))

        check_kept(snapshot, self._pools, keys_of, store.was_written)
        if not store.has_refused:
            check_order(snapshot, self._pools, keys_of, store.was_written)

    def _keys(self, namespace: Namespace, prefix: bytes) -> Keys:
        known = self._known.get((namespace, prefix))
        if known is None:
            key = Key(self._tokens(prefix), namespace)
            known = {pool: tuple(self._adapter.storage_keys(pool, key)) for pool in self._pools}
            self._known[namespace, prefix] = known
        return known

    def _tokens(self, prefix: bytes) -> np.typing.NDArray[np.int32]:
        tokens = np.frombuffer(prefix, dtype="<i4").astype(np.int32)
        return np.append(tokens[::2], tokens[-1:]) if self._bigram else tokens
