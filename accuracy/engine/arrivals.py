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
    """Tokens of a prompt that were not computed, by the tier that they came from."""

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
        on_device, branching = len(found.device_indices), found.branching_seqlen or 0
        loaded = self._load(found)
        if loaded is None:
            return Arrival(found.device_indices, found.device_anchor, receipt, Hits(on_device, 0, 0), branching)
        slots, receipt_below = loaded
        self._adapter.unlock(receipt)
        came = len(slots)
        hits = Hits(on_device, came - min(fetched, came), min(fetched, came))
        return Arrival(np.concatenate((found.device_indices, slots)), found.best_match, receipt_below, hits, branching)

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
