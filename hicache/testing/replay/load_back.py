"""HostLoader: loads back what a request finds on the host, as a server does before it computes the rest."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.violation import violation
from hicache.types import Handle, LoadBack, MatchResult, Slots, TransferPhase


@dataclass(frozen=True, slots=True, eq=False)
class FinishedLoad:
    """A finished load: the slots from the device anchor to the best match, and the receipt of the best match's lock."""

    slots: Slots
    receipt: Handle


class HostLoader:
    """Runs the transfers of one cache."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig, stopwatch: Stopwatch) -> None:
        self._adapter = adapter
        self._is_stepped = config.host is not None and config.host.executor is ExecutorKind.STEPPED
        self._is_storage_stepped = config.storage is not None and config.storage.executor is ExecutorKind.STEPPED
        self._time = stopwatch.time

    def step(self) -> None:
        """Let the cache apply the results of finished transfers, and start queued ones.

        Stepped transfers end in the step after the one that started them. Stepped storage does one batch of each
        request in a step.
        """
        for one in self._adapter.pending() if self._is_stepped else ():
            self._time(self._adapter.complete, one.ticket)
        for asked in self._adapter.pending_storage() if self._is_storage_stepped else ():
            self._time(self._adapter.advance_storage, asked.ticket)
        self._time(self._adapter.step)

    def drain(self) -> None:
        """Wait until nothing is in flight, so that no transfer pins anything."""
        self._time(self._adapter.drain)

    def has_host_data(self, found: MatchResult) -> bool:
        """Whether the host has data past the device anchor."""
        return found.host_hit_length > 0 or any(found.component_host_hit_lengths.values())

    def start(self, found: MatchResult) -> LoadBack | None:
        """Load what a match found past its device anchor; None when the cache refuses, as for lack of slots."""
        return self._time(self._adapter.load_back, found.best_match, quota=None)

    def finish(self, found: MatchResult, load: LoadBack) -> FinishedLoad:
        """Wait for a load and claim it. Raises InvariantError when less is loaded than was reported (FLOW-10)."""
        self.drain()
        phase = self._adapter.load_phase(load.ticket)
        if phase is not TransferPhase.DONE:
            raise violation("FLOW-10", "a load, with nothing in flight", TransferPhase.DONE.value, phase.value)
        # The claim releases the lock of the ticket.
        receipt = self._time(self._adapter.lock, found.best_match)
        slots = self._time(self._adapter.claim, load.ticket)
        if slots is None or len(slots) < found.host_hit_length:
            arrived = None if slots is None else f"{len(slots)} slots"
            raise violation("FLOW-10", "claim of a load", f"{found.host_hit_length} slots or more", arrived)
        return FinishedLoad(slots, receipt)
