"""PrefixFinder: prefetch, match, load back and lock the cached prefix of a prompt, as an inference server does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.violation import violation
from hicache.types import Handle, Key, MatchResult, Slots, TransferPhase

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hits:
    """Tokens of a prompt that were not computed, by the tier that their FULL KV came from. Each is counted once.

    KV that is on the device is not copied: such a token is a device hit, even if its window or state was loaded back.
    Of the tokens whose KV was loaded back, the last ones are those that a prefetch brought from storage.
    """

    device: int
    host: int
    storage: int

    @property
    def total(self) -> int:
        """Tokens from all tiers."""
        return self.device + self.host + self.storage


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefix:
    """The prefix of a prompt that is on the device and locked.

    `slots`: FULL slots of the tree. `node`: the node at which they end. `receipt`: of the lock on it.
    `branching_tokens`: the position at which a state should be cached, 0 for none.
    """

    slots: Slots
    node: Handle
    receipt: Handle
    hits: Hits
    branching_tokens: int


class PrefixFinder:
    """Finds the cached prefixes of prompts in one cache, one prompt after the other."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._prefetches = config.storage is not None and Capability.STORAGE in adapter.capabilities

    def find(self, key: Key) -> CachedPrefix:
        """Prefetch from storage, match, load back from the host, lock."""
        prefetched = self._prefetch(key) if self._prefetches else 0
        found = self._adapter.match(key, chunked=False)
        receipt = self._adapter.lock(found.device_anchor)
        branching = found.branching_seqlen or 0
        below = self._load(found)
        if below is None:
            hits = Hits(len(found.device_indices), 0, 0)
            return CachedPrefix(found.device_indices, found.device_anchor, receipt, hits, branching)
        slots_below, receipt_below = below
        self._adapter.unlock(receipt)
        slots = np.concatenate((found.device_indices, slots_below))
        hits = _hits(len(slots), min(found.host_hit_length, len(slots_below)), prefetched)
        return CachedPrefix(slots, found.best_match, receipt_below, hits, branching)

    def empty(self, key: Key) -> CachedPrefix:
        """The empty prefix, as if the cache had nothing of a prompt."""
        found = self._adapter.match(Key(key.tokens[:0], key.namespace), chunked=True)
        receipt = self._adapter.lock(found.device_anchor)
        return CachedPrefix(found.device_indices, found.device_anchor, receipt, Hits(0, 0, 0), 0)

    def retry_after_drain(self, allocate: Callable[[], T | None]) -> T | None:
        """Allocate; if that fails, try once more after all transfers have ended, as they pin their nodes."""
        allocated = allocate()
        if allocated is None:
            self._adapter.drain()
            allocated = allocate()
        return allocated

    def _prefetch(self, key: Key) -> int:
        ticket = self._adapter.prefetch(key)
        if ticket is None:
            return 0
        # Prompts arrive one after the other, so there is no other work to do during the prefetch.
        self._adapter.drain()
        tokens = self._adapter.check_prefetch(ticket)
        if tokens is None:
            raise violation("FETCH-3", "check of a prefetch after all jobs have ended", "its tokens", tokens)
        return tokens

    def _load(self, found: MatchResult) -> tuple[Slots, Handle] | None:
        """Load back from the host past the device anchor: the slots, and the receipt of the lock on the last node."""
        if not found.host_hit_length and not any(found.component_host_hit_lengths.values()):
            return None
        pinned = self._adapter.lock_host(found.best_match)
        load = self.retry_after_drain(lambda: self._adapter.load_back(found.best_match, quota=None))
        self._adapter.unlock_host(pinned)
        if load is None:
            return None
        self._adapter.drain()
        if self._adapter.load_phase(load.ticket) is not TransferPhase.DONE:
            self._adapter.claim(load.ticket)
            return None
        # The claim ends the protection by the ticket, so the lock is taken before it.
        receipt = self._adapter.lock(found.best_match)
        slots = self._adapter.claim(load.ticket)
        if slots is None:
            raise violation("FLOW-10", "claim of a load-back that is done", f"{found.host_hit_length} slots", slots)
        return slots, receipt


def _hits(total: int, loaded: int, prefetched: int) -> Hits:
    from_storage = min(prefetched, loaded)
    return Hits(total - loaded, loaded - from_storage, from_storage)
