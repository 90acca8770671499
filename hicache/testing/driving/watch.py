"""Watch: an adapter with a ledger of what its caller holds, and a check of everything after each verb."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.fetching import Fetching
from hicache.testing.driving.inspector import Inspector
from hicache.testing.driving.ledger import Ledger
from hicache.testing.driving.loading import Loading
from hicache.testing.driving.lock_book import LockBook
from hicache.testing.driving.running import Running
from hicache.testing.snapshot import Snapshot
from hicache.types import Sizes, Tier


class Watch:
    """What every part of a driver shares.

    `operations`: verbs driven so far. `check_every`: after how many of them everything is checked; 0: only `check()`.
    `running`: the requests under way, `loads` and `fetches`: those that somebody waits for, by the identity of their
    handle or ticket. `failures`: how many transfers the test let fail.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self.config = config
        self.operations = 0
        self.check_every = 1
        self.failures = 0
        self.locks = LockBook(config.components, Tier.DEVICE)
        self.host_locks = LockBook(config.components, Tier.HOST)
        self.running: dict[int, Running] = {}
        self.loads: dict[int, Loading] = {}
        self.fetches: dict[int, Fetching] = {}
        self.open(adapter)

    def open(self, adapter: CacheAdapter) -> None:
        """Watch this cache, which is empty."""
        self.adapter = adapter
        self.ledger = Ledger(self.config)
        self.contents = Contents(adapter, self.config)
        self.inspector = Inspector(adapter, self.config, self.ledger, self.locks, self.host_locks, self.contents)

    def forget(self) -> None:
        """Another life began: receipts and tickets of the old one are worth nothing."""
        self.locks.clear()
        self.host_locks.clear()
        self.loads.clear()
        self.fetches.clear()

    def snapshot(self) -> Snapshot:
        """The whole cache at this moment."""
        return self.adapter.snapshot()

    def check(self) -> None:
        """Raise InvariantError unless every law holds and every byte is right."""
        self.inspector.check(self.running.values(), is_awaited=bool(self.loads or self.fetches))

    def verb_done(self) -> None:
        """Count a verb, and check when it is time."""
        self.operations += 1
        if self.check_every and self.operations % self.check_every == 0:
            self.check()

    def spoil_free_slots(self) -> None:
        """Overwrite what is free on the device: what comes back from the host often gets the slots that it left."""
        if self.can_look and self.config.host is not None:
            for component, pool in self.snapshot().pools.items():
                self.contents.spoil(component, pool.free)

    @property
    def can_look(self) -> bool:
        """Whether the cache shows itself."""
        return Capability.SNAPSHOT in self.adapter.capabilities

    def sizes(self, tier: Tier) -> Mapping[str, Sizes]:
        """The size counters of a tier, if the cache shows any."""
        if Capability.SIZES not in self.adapter.capabilities:
            return {}
        return self.adapter.sizes() if tier is Tier.DEVICE else self.adapter.host_sizes()
