"""Audit: checks the laws on the whole cache, as far as the adapter's capabilities allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.tree_view import check_counters
from hicache.testing.laws import check_laws
from hicache.testing.laws.tiers import check_no_fetch
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Slots, Tier


class Audit:
    """`held`: returns the slots that running requests own, by component.

    `checks` counts the audits with a snapshot; it stays 0 for an adapter without SNAPSHOT.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig, held: Callable[[], Mapping[str, Slots]]) -> None:
        self._adapter = adapter
        self._config = config
        self._held = held
        self._contents = Contents(adapter, config)
        self.checks = 0

    def check(self) -> None:
        """Raise InvariantError unless every law holds."""
        self._check(self._held())

    def _check(self, held: Mapping[str, Slots]) -> None:
        if Capability.SNAPSHOT in self._adapter.capabilities:
            snapshot = self._adapter.snapshot()
            # Every caller that started a load has waited for it.
            check_laws(snapshot, self._config, held, is_awaited=False)
            check_counters(snapshot, self._adapter, self._config)
            self.checks += 1
        self._adapter.sanity_check()

    def check_when_idle(self) -> None:
        """With no running request and nothing in flight, read back every byte of the tree.

        Raises InvariantError unless the bytes are right (REQ-3), and no slot is held for a prefetch (FETCH-8).
        """
        self._check(self._nothing())
        if Capability.SNAPSHOT in self._adapter.capabilities:
            snapshot = self._adapter.snapshot()
            if snapshot.storage is not None:
                check_no_fetch(snapshot)
            self._contents.verify_tree(snapshot)

    def check_drained(self) -> None:
        """Like `check_when_idle`, and then evict everything from every tier.

        Raises InvariantError unless the bytes are right (REQ-3) and all slots become free (POOL-1, FLOW-7).
        """
        self.check_when_idle()
        self._evict_all()
        self._check(self._nothing())
        if Capability.SIZES not in self._adapter.capabilities:
            return
        for tier, capacity in self._capacities().items():
            sizes = self._adapter.sizes() if tier is Tier.DEVICE else self._adapter.host_sizes()
            free = {component: own.free for component, own in sizes.items()}
            if free != capacity:
                raise violation("FLOW-7", f"free slots of the {tier.value} after evicting everything", capacity, free)

    def _evict_all(self) -> None:
        tiers = list(self._capacities().items())
        # Twice with a host: a node that must be backed up before its eviction may have found no free host slots.
        for tier, capacity in tiers if len(tiers) == 1 else 2 * tiers:
            evict = self._adapter.evict if tier is Tier.DEVICE else self._adapter.evict_host
            for component, tokens in capacity.items():
                evict(component, tokens)
            if self._config.storage is not None:
                # Pages that were just backed up are being written to storage, and are pinned.
                self._adapter.drain()

    def _nothing(self) -> dict[str, Slots]:
        return dict.fromkeys(self._config.components, NO_SLOTS)

    def _capacities(self) -> dict[Tier, dict[str, int]]:
        capacities = {Tier.DEVICE: dict(self._config.capacity_tokens)}
        if self._config.host is not None:
            capacities[Tier.HOST] = dict(self._config.host.capacity_tokens)
        return capacities
