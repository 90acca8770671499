"""Audit: holds the whole cache to the laws, as far as its adapter can be looked into."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.laws import check_laws
from hicache.testing.laws.counters import check_partners, check_sizes
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Component, Slots


class Audit:
    """`checks` counts the audits that looked at the cache: it stays 0 for an adapter that cannot show itself."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._config = config
        self._contents = Contents(adapter, config)
        self.checks = 0

    def check(self, held: Mapping[str, Slots]) -> None:
        """Raise InvariantError unless every law holds.

        `held`: the slots that running requests own, by component.
        """
        if Capability.SNAPSHOT in self._adapter.capabilities:
            self._check_snapshot(held)
            self.checks += 1
        self._adapter.sanity_check()

    def check_drained(self) -> None:
        """With no request running, read back every byte of the tree, then evict everything.

        Raises InvariantError unless the bytes are right (REQ-3) and all slots come back (POOL-1, FLOW-7).
        """
        nothing = dict.fromkeys(self._config.components, NO_SLOTS)
        self.check(nothing)
        if Capability.SNAPSHOT in self._adapter.capabilities:
            self._contents.verify_tree(self._adapter.snapshot())
        for component, capacity in self._config.capacity_tokens.items():
            self._adapter.evict(component, capacity)
        self.check(nothing)
        if Capability.SIZES not in self._adapter.capabilities:
            return
        expected = dict(self._config.capacity_tokens)
        free = {component: sizes.free for component, sizes in self._adapter.sizes().items()}
        if free != expected:
            raise violation("FLOW-7", "free slots after everything was evicted", expected, free)

    def _check_snapshot(self, held: Mapping[str, Slots]) -> None:
        snapshot = self._adapter.snapshot()
        check_laws(snapshot, self._config, held)
        if Capability.SIZES in self._adapter.capabilities:
            check_sizes(snapshot, self._adapter.sizes())
        if Component.SWA in self._config.components:
            check_partners(snapshot, self._adapter.partners)
