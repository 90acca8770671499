"""Audit: holds the whole cache to the laws, as far as its adapter can be looked into."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.laws import check_laws
from hicache.testing.laws.counters import check_host_sizes, check_partners, check_sizes
from hicache.testing.laws.storage import check_no_fetch
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Component, Slots, Tier


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

    def check_at_rest(self) -> None:
        """With nothing running and nothing under way, read back every byte of the tree.

        Raises InvariantError unless the bytes are right (REQ-3), and no slot is held for a fetch (FETCH-8).
        """
        self.check(self._nothing())
        if Capability.SNAPSHOT in self._adapter.capabilities:
            snapshot = self._adapter.snapshot()
            if snapshot.storage is not None:
                check_no_fetch(snapshot)
            self._contents.verify_tree(snapshot)

    def check_drained(self) -> None:
        """The same, and then evict all of every tier.

        Raises InvariantError unless the bytes are right (REQ-3) and all slots come back (POOL-1, FLOW-7).
        """
        self.check_at_rest()
        self._evict_all()
        self.check(self._nothing())
        if Capability.SIZES not in self._adapter.capabilities:
            return
        for tier, capacity in self._capacities().items():
            sizes = self._adapter.sizes() if tier is Tier.DEVICE else self._adapter.host_sizes()
            free = {component: own.free for component, own in sizes.items()}
            if free != capacity:
                raise violation("FLOW-7", f"free slots of the {tier.value} after all was evicted", capacity, free)

    def _evict_all(self) -> None:
        tiers = list(self._capacities().items())
        # With a host twice: what must be backed up before it goes may have found no room there.
        for tier, capacity in tiers if len(tiers) == 1 else 2 * tiers:
            evict = self._adapter.evict if tier is Tier.DEVICE else self._adapter.evict_host
            for component, tokens in capacity.items():
                evict(component, tokens)
            if self._config.storage is not None:
                # What was backed up just now is on its way to storage, and pinned.
                self._adapter.drain()

    def _nothing(self) -> dict[str, Slots]:
        return dict.fromkeys(self._config.components, NO_SLOTS)

    def _capacities(self) -> dict[Tier, dict[str, int]]:
        capacities = {Tier.DEVICE: dict(self._config.capacity_tokens)}
        if self._config.host is not None:
            capacities[Tier.HOST] = dict(self._config.host.capacity_tokens)
        return capacities

    def _check_snapshot(self, held: Mapping[str, Slots]) -> None:
        snapshot = self._adapter.snapshot()
        # Whoever asked for a load has waited for it.
        check_laws(snapshot, self._config, held, is_awaited=False)
        if Capability.SIZES in self._adapter.capabilities:
            check_sizes(snapshot, self._adapter.sizes())
            if snapshot.host is not None:
                check_host_sizes(snapshot.host, self._adapter.host_sizes())
        if Component.SWA in self._config.components:
            check_partners(snapshot, self._adapter.partners)
