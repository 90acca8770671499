"""Watch: an adapter with a ledger of what its caller holds, and a check of everything after each verb."""

from __future__ import annotations

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.inspector import Inspector
from hicache.testing.driving.ledger import Ledger
from hicache.testing.driving.lock_book import LockBook
from hicache.testing.driving.running import Running


class Watch:
    """What every part of a driver shares.

    `operations`: verbs driven so far. `check_every`: after how many of them everything is checked; 0: only `check()`.
    `running`: the requests under way, by the identity of their handle.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self.adapter = adapter
        self.config = config
        self.operations = 0
        self.check_every = 1
        self.ledger = Ledger(config)
        self.contents = Contents(adapter, config)
        self.locks = LockBook(config.components)
        self.running: dict[int, Running] = {}
        self.inspector = Inspector(adapter, config, self.ledger, self.locks, self.contents)

    def check(self) -> None:
        """Raise InvariantError unless every law holds and every byte is right."""
        self.inspector.check(self.running.values())

    def verb_done(self) -> None:
        """Count a verb, and check when it is time."""
        self.operations += 1
        if self.check_every and self.operations % self.check_every == 0:
            self.check()
