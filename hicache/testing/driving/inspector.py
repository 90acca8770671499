"""Inspector: checks the whole cache after a verb against every law and against its earlier state."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.ledger import Ledger
from hicache.testing.driving.lock_book import LockBook
from hicache.testing.driving.objects import Objects
from hicache.testing.driving.running_request import RunningRequest
from hicache.testing.laws import check_laws
from hicache.testing.laws.conservation import TREE, Owners, Ownership, all_slots, node_slots
from hicache.testing.laws.counters import check_host_sizes, check_partners, check_sizes, require_partners
from hicache.testing.laws.locks import check_receipts
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import Component, Slots, Tier


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

    def check(self, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        """Raise InvariantError unless laws, counters, mappings, locks and bytes are right.

        `running`: the running requests. `is_awaited`: a caller waits for a load or a prefetch.
        """
        if Capability.SNAPSHOT in self._adapter.capabilities:
            is_awaited |= any(request.is_loading for request in running)
            self._check_snapshot(self._adapter.snapshot(), running, is_awaited=is_awaited)
        self._adapter.sanity_check()

    def _check_snapshot(self, snapshot: Snapshot, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        held, departures = self._held(snapshot, running), self._adapter.departures
        owners = check_laws(snapshot, self._config, held, is_awaited=is_awaited, departures=departures)
        check_receipts(snapshot, len(self._locks))
        self._check_sizes(snapshot)
        if Component.SWA in self._config.components:
            check_partners(snapshot, self._adapter.partners)
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

    def _check_sizes(self, snapshot: Snapshot) -> None:
        if Capability.SIZES in self._adapter.capabilities:
            check_sizes(snapshot, self._adapter.sizes())
            if snapshot.host is not None:
                check_host_sizes(snapshot.host, self._adapter.host_sizes())

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
