"""HostLoader: brings back from the host what a request found there, as a server does before it computes the rest."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.violation import violation
from hicache.types import Handle, LoadBack, MatchResult, Slots, TransferPhase


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """What came back: the slots from the device anchor to the best match, and the receipt of the best match's lock."""

    slots: Slots
    receipt: Handle


class HostLoader:
    """Drives the transfers of one cache."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig, stopwatch: Stopwatch) -> None:
        self._adapter = adapter
        self._is_stepped = config.host is not None and config.host.executor is ExecutorKind.STEPPED
        self._is_storage_stepped = config.storage is not None and config.storage.executor is ExecutorKind.STEPPED
        self._time = stopwatch.time

    def step(self) -> None:
        """Let the cache take over what has ended, and start what is queued.

        Transfers that move in steps have ended by the step after the one that started them. Storage that is asked in
        steps does one batch in each.
        """
        for one in self._adapter.pending() if self._is_stepped else ():
            self._time(self._adapter.complete, one.ticket)
        for asked in self._adapter.pending_storage() if self._is_storage_stepped else ():
            self._time(self._adapter.advance_storage, asked.ticket)
        self._time(self._adapter.step)

    def drain(self) -> None:
        """Wait until nothing is under way, so that nothing is pinned for it."""
        self._time(self._adapter.drain)

    def has_more(self, found: MatchResult) -> bool:
        """Whether the host has something past the device anchor."""
        return found.host_hit_length > 0 or any(found.component_host_hit_lengths.values())

    def start(self, found: MatchResult) -> LoadBack | None:
        """Ask for what a match found past its device anchor; None when the cache refuses, as it does out of memory."""
        return self._time(self._adapter.load_back, found.best_match, quota=None)

    def finish(self, found: MatchResult, load: LoadBack) -> Delivery:
        """Wait for a load and take it over. Raises InvariantError when less comes than was reported (FLOW-10)."""
        self.drain()
        phase = self._adapter.load_phase(load.ticket)
        if phase is not TransferPhase.DONE:
            raise violation("FLOW-10", "a load, with nothing under way any more", TransferPhase.DONE.value, phase.value)
        # What the ticket protects is protected no more once it is claimed.
        receipt = self._time(self._adapter.lock, found.best_match)
        slots = self._time(self._adapter.claim, load.ticket)
        if slots is None or len(slots) < found.host_hit_length:
            arrived = None if slots is None else f"{len(slots)} slots"
            raise violation("FLOW-10", "claim of a load", f"{found.host_hit_length} slots or more", arrived)
        return Delivery(slots, receipt)
