"""DriverBase: an adapter, a ledger of what the caller holds, and a check of everything after each verb."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.inspector import Inspector
from hicache.testing.driving.ledger import Ledger
from hicache.testing.driving.lock_book import LockBook
from hicache.testing.driving.open_load import OpenLoad
from hicache.testing.driving.open_prefetch import OpenPrefetch
from hicache.testing.driving.running_request import RunningRequest
from hicache.testing.snapshot import Snapshot
from hicache.types import Sizes, Tier


class DriverBase:
    """What all parts of a driver share.

    `operations`: verbs called so far. `check_every`: everything is checked after this many verbs; 0: only by `check()`.
    `running`: the running requests; `loads` and `prefetches`: those that a caller waits for; all by the identity of
    their handle or ticket. `failures`: how many transfers the test let fail.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self.config = config
        self.operations = 0
        self.check_every = 1
        self.failures = 0
        self.locks = LockBook(config.components, Tier.DEVICE)
        self.host_locks = LockBook(config.components, Tier.HOST)
        self.running: dict[int, RunningRequest] = {}
        self.loads: dict[int, OpenLoad] = {}
        self.prefetches: dict[int, OpenPrefetch] = {}
        self.open(adapter)

    def open(self, adapter: CacheAdapter) -> None:
        """Use this cache, which is empty."""
        self.adapter = adapter
        self.ledger = Ledger(self.config)
        self.contents = Contents(adapter, self.config)
        self.inspector = Inspector(adapter, self.config, self.ledger, self.locks, self.host_locks, self.contents)

    def forget(self) -> None:
        """Drop all receipts and tickets: they are not valid in a new epoch."""
        self.locks.clear()
        self.host_locks.clear()
        self.loads.clear()
        self.prefetches.clear()

    def snapshot(self) -> Snapshot:
        """The state of the whole cache now."""
        return self.adapter.snapshot()

    def check(self) -> None:
        """Raise InvariantError unless every law holds and every byte is right."""
        self.inspector.check(self.running.values(), is_awaited=bool(self.loads or self.prefetches))

    def verb_done(self) -> None:
        """Count a verb, and check everything when it is due."""
        self.operations += 1
        if self.check_every and self.operations % self.check_every == 0:
            self.check()

    def overwrite_free_slots(self) -> None:
        """Overwrite all free device slots: a load often gets the slots that its data had before the eviction."""
        if self.has_snapshot and self.config.host is not None:
            for component, pool in self.snapshot().pools.items():
                self.contents.overwrite(component, pool.free)

    @property
    def has_snapshot(self) -> bool:
        """Whether the adapter declares SNAPSHOT."""
        return Capability.SNAPSHOT in self.adapter.capabilities

    def sizes(self, tier: Tier) -> Mapping[str, Sizes]:
        """The size counters of a tier; empty without SIZES."""
        if Capability.SIZES not in self.adapter.capabilities:
            return {}
        return self.adapter.sizes() if tier is Tier.DEVICE else self.adapter.host_sizes()
