"""View: how a driver sees one cache: what it holds, what is in flight, and the bytes that requests compute and read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.running import RunningRequest
from hicache.testing.snapshot import TransferView
from hicache.types import Key, Slots


class StorageState(NamedTuple):
    """What a cache has because of its storage tier.

    `held`: a description of the host slots of prefetches and of the pins on the host. `marks`: by node, the components
    that storage has.
    """

    held: str
    marks: Sequence[frozenset[str]]


NO_STORAGE = StorageState("", ())


class View(ABC):
    """One design of cache, as a driver sees it.

    `is_shown`: the adapter declares SNAPSHOT. Otherwise nothing is known to be cached, in flight or resident, and the
    checks of these hold. `shows_blocks`: the adapter has a BlockSnapshot. `verb`: the one that was called last.
    """

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._config = config
        self.is_shown = Capability.SNAPSHOT in adapter.capabilities
        self.shows_blocks = False
        self.verb = "a verb"

    # What a cache shows.

    @abstractmethod
    def check(self, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        """Raise InvariantError unless every law holds and every byte is right.

        `running`: the running requests. `is_awaited`: a caller waits for a load or a prefetch.
        """

    @abstractmethod
    def cached_length(self, key: Key) -> int:
        """The number of elements of a prompt that a look-up finds on all tiers, by the oracle."""

    def expected_admission(self, key: Key, *, is_alone: bool) -> int | None:
        """The number of tokens that an admission must find cached; None where the oracle does not know it.

        `is_alone`: no request runs.
        """

    @abstractmethod
    def transfers(self) -> Sequence[TransferView]:
        """The transfers in flight."""

    @abstractmethod
    def residency(self) -> object:
        """What is on which tier, as a value that can be compared."""

    def storage_state(self) -> StorageState:
        """What the cache has because of its storage tier."""
        return NO_STORAGE

    def state_of(self, key: Key, *, in_flight: bool) -> Slots | None:
        """The cached device slot of the state after exactly this key. `in_flight`: also one that is being loaded."""

    def evictable_on_host(self, component: str) -> Sequence[int]:
        """The nodes whose host data of a component can be evicted."""
        return ()

    def refused(self) -> None:
        """The verb that is checked next did not admit its request."""

    def overwrite_blank(self) -> None:
        """Overwrite the device slots that no request and no cached prefix has."""

    @abstractmethod
    def require_nothing_cached(self) -> None:
        """Raise InvariantError when something is cached or in flight after a reset (EVICT-9)."""

    def require_no_prefetch(self) -> None:
        """Raise InvariantError when a prefetch has host slots."""

    # What requests compute and read.

    @abstractmethod
    def set_table(self, running: RunningRequest, table: Slots) -> None:
        """Take over the table that a verb returned for a request. Raises InvariantError when it is wrong (REQ-4)."""

    @abstractmethod
    def compute(self, running: RunningRequest, tokens: int) -> None:
        """Compute the first `tokens` tokens: whole pages or blocks of KV, and the state after exactly these."""

    def schedule(self, running: RunningRequest) -> None:
        """Compute what is cached when it is scheduled, in the same step, before a request reads it."""

    @abstractmethod
    def verify(self, running: RunningRequest) -> None:
        """Check the bytes of a request that has computed tokens of its own."""

    @abstractmethod
    def verify_hit(self, running: RunningRequest) -> None:
        """Check the bytes of a request that has its hit and has computed nothing."""
