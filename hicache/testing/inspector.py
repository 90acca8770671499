"""Inspector: looks at the whole cache after a verb and holds it to every law, and to what it was before."""

from __future__ import annotations

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contents import Contents
from hicache.testing.laws import check_laws
from hicache.testing.laws.conservation import check_partners, check_sizes, tree_slots
from hicache.testing.laws.table import Flags
from hicache.testing.ledger import Ledger
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Component, Slots


class Inspector:
    """Checks one adapter against the ledger of its driver, as far as the adapter can be looked into."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig, ledger: Ledger, contents: Contents) -> None:
        self._adapter = adapter
        self._config = config
        self._ledger = ledger
        self._contents = contents
        self._pools: dict[str, Flags] = {}
        self._locked: dict[str, Slots] = {}

    def check(self) -> None:
        """Raise InvariantError unless laws, counters, mappings and bytes are right."""
        if Capability.SNAPSHOT not in self._adapter.capabilities:
            return
        snapshot = self._adapter.snapshot()
        table, pools = check_laws(snapshot, self._config, self._ledger.held())
        self._require_same_pools(pools)
        if Capability.SIZES in self._adapter.capabilities:
            check_sizes(table, self._adapter.sizes())
        if Component.SWA in self._config.components:
            check_partners(table, self._adapter.partners)
        self._require_locked_data(snapshot)
        self._contents.verify_tree(snapshot)

    def expect_unlock(self) -> None:
        """The verb that follows may set locked data free."""
        self._locked = {}

    def _require_same_pools(self, pools: dict[str, Flags]) -> None:
        for component, slots in pools.items():
            known = self._pools.setdefault(component, slots)
            if not np.array_equal(known, slots):
                gone, new = np.flatnonzero(known).tolist(), np.flatnonzero(slots).tolist()
                raise violation("POOL-1", f"pool of {component}", f"the slots that it always had: {gone}", new)

    def _require_locked_data(self, snapshot: Snapshot) -> None:
        """LOCK-5: what was locked at the last look, and not unlocked since, is in the tree still."""
        for component, slots in self._locked.items():
            lost = slots[~np.isin(slots, tree_slots(snapshot, component))]
            if len(lost):
                raise violation(
                    "LOCK-5", f"{component} slots under a lock", "to stay in the tree", f"{lost.tolist()} gone"
                )
        self._locked = {component: _locked_slots(snapshot, component) for component in self._config.components}


def _locked_slots(snapshot: Snapshot, component: str) -> Slots:
    locked = [
        slots for node in snapshot.nodes if node.locks[component] > 0 and (slots := node.slots[component]) is not None
    ]
    return np.concatenate(locked) if locked else NO_SLOTS
