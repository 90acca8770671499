"""Arrivals: what a cache has of a prompt that arrives, brought to the device and protected, as a server does it."""

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
    """Tokens of a prompt that were not computed, by the tier that their FULL KV came from; each is counted once.

    What is on the device is never copied, so that a token whose KV is there is the device's, even where its window or
    its state had to be loaded. Of the tokens whose KV is loaded, the last are those that the prefetch brought.
    """

    device: int
    host: int
    storage: int

    @property
    def total(self) -> int:
        """From whatever tier."""
        return self.device + self.host + self.storage


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """The prefix of a prompt that is on the device and locked.

    `slots`: FULL slots of the tree. `node`: where they end. `receipt`: of its lock. `branching_tokens`: where a state
    should be kept, 0 for nowhere.
    """

    slots: Slots
    node: Handle
    receipt: Handle
    hits: Hits
    branching_tokens: int


class Arrivals:
    """Takes prompts in, one after the other, over one cache."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig) -> None:
        self._adapter = adapter
        self._fetches = config.storage is not None and Capability.STORAGE in adapter.capabilities

    def take(self, key: Key) -> Arrival:
        """Fetch what storage has, match, load back what the host has, lock."""
        fetched = self._fetch(key) if self._fetches else 0
        found = self._adapter.match(key, chunked=False)
        receipt = self._adapter.lock(found.device_anchor)
        branching = found.branching_seqlen or 0
        below = self._load(found)
        if below is None:
            hits = Hits(len(found.device_indices), 0, 0)
            return Arrival(found.device_indices, found.device_anchor, receipt, hits, branching)
        slots_below, receipt_below = below
        self._adapter.unlock(receipt)
        slots = np.concatenate((found.device_indices, slots_below))
        hits = _hits(len(slots), min(found.host_hit_length, len(slots_below)), fetched)
        return Arrival(slots, found.best_match, receipt_below, hits, branching)

    def nothing(self, key: Key) -> Arrival:
        """As if the cache had nothing of a prompt."""
        found = self._adapter.match(Key(key.tokens[:0], key.namespace), chunked=True)
        receipt = self._adapter.lock(found.device_anchor)
        return Arrival(found.device_indices, found.device_anchor, receipt, Hits(0, 0, 0), 0)

    def fit(self, take: Callable[[], T | None]) -> T | None:
        """Take something of the cache; once more when nothing is under way, for what is being copied is pinned."""
        taken = take()
        if taken is None:
            self._adapter.drain()
            taken = take()
        return taken

    def _fetch(self, key: Key) -> int:
        ticket = self._adapter.prefetch(key)
        if ticket is None:
            return 0
        # One request after the other: nothing else could be done meanwhile.
        self._adapter.drain()
        came = self._adapter.check_prefetch(ticket)
        if came is None:
            raise violation("FETCH-3", "check of a prefetch, with nothing under way", "what it brought", came)
        return came

    def _load(self, found: MatchResult) -> tuple[Slots, Handle] | None:
        """What comes from the host past the device anchor, and the receipt of the lock on where it ends."""
        if not found.host_hit_length and not any(found.component_host_hit_lengths.values()):
            return None
        pinned = self._adapter.lock_host(found.best_match)
        load = self.fit(lambda: self._adapter.load_back(found.best_match, quota=None))
        self._adapter.unlock_host(pinned)
        if load is None:
            return None
        self._adapter.drain()
        if self._adapter.load_phase(load.ticket) is not TransferPhase.DONE:
            self._adapter.claim(load.ticket)
            return None
        # What the ticket protects is protected no more once it is claimed.
        receipt = self._adapter.lock(found.best_match)
        slots = self._adapter.claim(load.ticket)
        if slots is None:
            raise violation("FLOW-10", "claim of a load that is done", f"{found.host_hit_length} slots", slots)
        return slots, receipt


def _hits(total: int, loaded: int, fetched: int) -> Hits:
    from_storage = min(fetched, loaded)
    return Hits(total - loaded, loaded - from_storage, from_storage)
