"""Inspector: looks at the whole cache after a verb and holds it to every law, and to what it was before."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.ledger import Ledger
from hicache.testing.driving.lock_book import LockBook
from hicache.testing.driving.running import Running
from hicache.testing.laws import check_laws
from hicache.testing.laws.conservation import TREE, Owners, all_slots, node_slots
from hicache.testing.laws.counters import check_partners, check_sizes, require_partners
from hicache.testing.laws.locks import check_receipts
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import Component, Slots


class Inspector:
    """Checks one adapter against what its driver holds, as far as the adapter can be looked into."""

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, ledger: Ledger, locks: LockBook, contents: Contents
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._ledger = ledger
        self._locks = locks
        self._contents = contents
        self._pools: dict[str, npt.NDArray[np.bool_]] = {}

    def check(self, running: Collection[Running]) -> None:
        """Raise InvariantError unless laws, counters, mappings, locks and bytes are right. `running`: the requests."""
        if Capability.SNAPSHOT in self._adapter.capabilities:
            self._check_snapshot(self._adapter.snapshot(), running)
        self._adapter.sanity_check()

    def _check_snapshot(self, snapshot: Snapshot, running: Collection[Running]) -> None:
        owners = check_laws(snapshot, self._config, self._held(snapshot, running))
        check_receipts(snapshot, len(self._locks))
        if Capability.SIZES in self._adapter.capabilities:
            check_sizes(snapshot, self._adapter.sizes())
        if Component.SWA in self._config.components:
            check_partners(snapshot, self._adapter.partners)
            require_partners(*self._ledger.partners(), self._adapter.partners)
        self._require_same_pools(owners)
        self._locks.look(snapshot)
        for request in running:
            self._require_protection(request, owners[Component.FULL])
        self._contents.verify_tree(snapshot)

    def _held(self, snapshot: Snapshot, running: Collection[Running]) -> dict[str, Slots]:
        """What the ledger says, and what requests have in their tables that is not the tree's."""
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
            states = np.array([request.state for request in running], dtype=np.int64)
            held[Component.MAMBA] = np.concatenate((held[Component.MAMBA], states))
        return held

    def _in_tree(self, snapshot: Snapshot, running: Collection[Running]) -> npt.NDArray[np.bool_]:
        held = node_slots(snapshot, Component.FULL)
        several = [*held, *(request.table for request in running)]
        in_tree = np.zeros(1 + max((int(slots.max()) for slots in several if len(slots)), default=0), dtype=np.bool_)
        for slots in held:
            in_tree[slots] = True
        return in_tree

    def _require_same_pools(self, owners: dict[str, Owners]) -> None:
        for component, owner in owners.items():
            known = self._pools.setdefault(component, owner > 0)
            if not np.array_equal(known, owner > 0):
                always, now = np.flatnonzero(known).tolist(), np.flatnonzero(owner).tolist()
                raise violation("POOL-1", f"pool of {component}", f"the slots that it always had: {always}", now)

    def _require_protection(self, request: Running, owners: Owners) -> None:
        """REQ-1: what a request shares with the tree, it protects."""
        protected = self._locks.protected(request.owner, Component.FULL)
        if protected is None:
            return
        shared = request.table[owners[request.table] == TREE]
        bare = shared[~np.isin(shared, protected)]
        if len(bare):
            place = f"shared slots of a request of {len(request.key.tokens)} tokens"
            raise violation("REQ-1", place, f"all of {shared.tolist()} under its lock", f"{bare.tolist()} without one")
