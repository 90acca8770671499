"""TreeView: a cache with a tree, checked after a verb against every law, its earlier state and its storage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clauses_not_checked
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.ledger import Ledger, LockBook
from hicache.testing.driving.oracle import cached_length
from hicache.testing.driving.patterns import element_bytes, elements_of
from hicache.testing.driving.pools import component_of
from hicache.testing.driving.prompts import aligned_count
from hicache.testing.driving.running import RunningRequest
from hicache.testing.driving.view import NO_STORAGE, StorageState, View
from hicache.testing.geometry import geometry_of
from hicache.testing.laws import check_laws
from hicache.testing.laws.blocks import check_growth
from hicache.testing.laws.slots import (
    TREE,
    Owners,
    Ownership,
    all_slots,
    check_host_sizes,
    check_partners,
    check_sizes,
    node_slots,
    require_pages,
    require_partners,
)
from hicache.testing.laws.tiers import Keys, check_kept, check_no_fetch, check_order
from hicache.testing.laws.tree import check_receipts, host_candidates
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot, TransferView
from hicache.testing.storage.scripted import store_of
from hicache.testing.violation import violation
from hicache.types import Component, Key, Namespace, Slots, Tier, TransferKind


def check_counters(snapshot: Snapshot, adapter: CacheAdapter, config: CacheConfig) -> None:
    """Raise InvariantError unless the size counters and the SWA partners are those of the snapshot."""
    if Capability.SIZES in adapter.capabilities:
        check_sizes(snapshot, adapter.sizes())
        if snapshot.host is not None:
            check_host_sizes(snapshot.host, adapter.host_sizes())
    if Component.SWA in config.components:
        check_partners(snapshot, adapter.partners)


class TreeView(View):
    """A cache with a tree. Checks one adapter against what its driver holds, as far as its capabilities allow."""

    def __init__(
        self,
        adapter: CacheAdapter,
        config: CacheConfig,
        ledger: Ledger,
        locks: LockBook,
        host_locks: LockBook,
        contents: Contents,
    ) -> None:
        super().__init__(adapter, config)
        self._geometry = geometry_of(config)
        self._ledger = ledger
        self._locks = locks
        self._host_locks = host_locks
        self._contents = contents
        self._objects = Objects(adapter, config)
        self._pools: dict[tuple[Tier, str], npt.NDArray[np.bool_]] = {}
        self._owners: dict[tuple[Tier, str], Owners] = {}

    def check(self, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        if self.is_shown:
            is_awaited |= any(request.is_loading for request in running)
            self._check_snapshot(self._adapter.snapshot(), running, is_awaited=is_awaited)
        self._adapter.sanity_check()

    # What a tree shows.

    def cached_length(self, key: Key) -> int:
        return cached_length(key, self._adapter.snapshot(), self._config) if self.is_shown else 0

    def transfers(self) -> Sequence[TransferView]:
        host = self._adapter.snapshot().host if self.is_shown else None
        return () if host is None else host.transfers

    def residency(self) -> object:
        if not self.is_shown:
            return None
        snapshot = self._adapter.snapshot()
        views: list[NodeView | HostNodeView] = [*snapshot.nodes]
        views += snapshot.host.nodes if snapshot.host is not None else ()
        return [[None if slots is None else slots.tobytes() for slots in view.slots.values()] for view in views]

    def storage_state(self) -> StorageState:
        if not self.is_shown:
            return NO_STORAGE
        snapshot = self._adapter.snapshot()
        fetches = () if snapshot.storage is None else snapshot.storage.fetches
        slots = [{name: own.tolist() for name, own in one.host.items()} for one in fetches]
        marks = () if snapshot.storage is None else snapshot.storage.persisted or ()
        return StorageState(f"prefetches {slots}, pins {_host_pins(snapshot)}", marks)

    def state_of(self, key: Key, *, in_flight: bool) -> Slots | None:
        snapshot = self._adapter.snapshot()
        row = _row_of(key, snapshot, self._config)
        if row is None:
            return None
        state = snapshot.nodes[row].slots[Component.MAMBA]
        below = snapshot.host.nodes[row].slots[Component.MAMBA] if snapshot.host is not None else None
        if state is not None or below is None or snapshot.host is None or not in_flight:
            return state
        for one in snapshot.host.transfers:
            is_load = one.kind is TransferKind.LOAD and Component.MAMBA in one.host
            if is_load and (one.host[Component.MAMBA] == below).all():
                state = one.device[Component.MAMBA]
        return state

    def evictable_on_host(self, component: str) -> Sequence[int]:
        return host_candidates(self._adapter.snapshot(), component) if self.is_shown else ()

    def overwrite_blank(self) -> None:
        for component, pool in self._adapter.snapshot().pools.items() if self.is_shown else ():
            self._contents.overwrite(component, pool.free)

    def require_nothing_cached(self) -> None:
        if not self.is_shown:
            return
        snapshot = self._adapter.snapshot()
        transfers = snapshot.host.transfers if snapshot.host is not None else ()
        prefetches = snapshot.storage.fetches if snapshot.storage is not None else ()
        if snapshot.nodes or transfers or prefetches:
            left = f"{len(snapshot.nodes)} nodes, {len(transfers)} transfers, {len(prefetches)} prefetches"
            raise violation("EVICT-9", "reset", "nothing cached and nothing in flight", left)

    def require_no_prefetch(self) -> None:
        if self.is_shown and self._config.storage is not None:
            check_no_fetch(self._adapter.snapshot())

    # What requests compute and read: each slot of FULL has a partner in SWA, and a request has one state.

    def set_table(self, running: RunningRequest, table: Slots) -> None:
        if self._geometry.duplicates:
            check_growth({Component.FULL: running.table}, {Component.FULL: table})
        running.table = table
        place = f"table of a request of {len(running.key.tokens)} tokens"
        expected = -(-running.slot_tokens // self._config.page_size) * self._config.page_size
        if len(table) != expected:
            raise violation("REQ-4", place, f"{expected} slots", f"{len(table)} slots")
        require_pages(table, self._config.page_size, place)

    def compute(self, running: RunningRequest, tokens: int) -> None:
        start = aligned_count(running.computed(), self._config)
        key = running.upto(tokens)
        self._contents.write(key, running.table[start : aligned_count(key, self._config)], start)
        if running.state is not None:
            self._contents.write_state(key, running.state)
        running.computed_tokens = tokens

    def verify(self, running: RunningRequest) -> None:
        self._verify(running, is_own=True)

    def verify_hit(self, running: RunningRequest) -> None:
        self._verify(running, is_own=False)
        if running.state is not None and aligned_count(running.computed(), self._config):
            self._contents.verify_state(running.computed(), running.state)

    def _verify(self, running: RunningRequest, *, is_own: bool) -> None:
        computed = running.computed()
        self._contents.verify(computed, running.table[: aligned_count(computed, self._config)], is_own=is_own)

    # The checks of a snapshot.

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
        own = all_slots([request.own_slots(in_tree, duplicates=self._geometry.duplicates) for request in running])
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


def _row_of(key: Key, snapshot: Snapshot, config: CacheConfig) -> int | None:
    """The row of the node that ends where the key's whole pages end, or None."""
    end, size = aligned_count(key, config), element_bytes(config.bigram)
    elements = elements_of(key, config.bigram)[: end * size]
    for row, node in enumerate(snapshot.nodes):
        if node.end == end and node.namespace == key.namespace and snapshot.prefix(row) == elements:
            return row
    return None


def _host_pins(snapshot: Snapshot) -> dict[str, int]:
    """The number of slots that the cache's own locks protect on the host, per lock: a split does not change it."""
    views = () if snapshot.host is None else snapshot.host.nodes
    pins: Counter[str] = Counter()
    for view in views:
        for name, count in view.host_pins.items():
            slots = view.slots[name]
            pins[name] += count * (0 if slots is None else len(slots))
    return dict(pins)


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
