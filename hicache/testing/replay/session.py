"""Session: serves prompts from a cache, like a scheduler that runs a few of them at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.prompts import aligned_count, cut
from hicache.testing.model import Model
from hicache.testing.replay.configuration import ReplaySettings, StorageSettings
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.violation import violation
from hicache.types import (
    NO_SLOTS,
    Component,
    Handle,
    InsertResult,
    Key,
    LoadBack,
    MatchResult,
    Slots,
    StopPolicy,
    Tier,
    TransferKind,
    TransferPhase,
)

T = TypeVar("T")

STEP_S = 0.001
"""The duration of a scheduler step: real time with threads, otherwise on the cache's clock."""

_MAX_STEPS = 1000
"""After so many steps a request waits until nothing is in flight."""


@dataclass(frozen=True, slots=True)
class Served:
    """The hits of a prompt, in tokens by tier, and how many tokens the tree gained on the device.

    Loaded tokens that were prefetched for this prompt are hits of storage. `fits`: the prompt was served; otherwise it
    has no hits.
    """

    hit_tokens: Mapping[str, int]
    gained_tokens: int
    fits: bool


@dataclass(slots=True, eq=False)
class _RunningRequest:
    """A running request: its slots, one per token in whole pages; how many belong to the tree; the lock on those."""

    key: Key
    table: Slots
    cached: int
    receipt: Handle


class Session:
    """One cache and its running requests, at most `settings.running` at the same time.

    `prefetcher`: runs the prefetches from storage, or None without storage.
    """

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, settings: ReplaySettings, stopwatch: Stopwatch
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._time = stopwatch.time
        self._max_running = settings.running
        self._running: deque[_RunningRequest] = deque()
        self._contents = Contents(adapter, config)
        self._has_states = Component.MAMBA in config.components
        self._host = HostLoader(adapter, config, stopwatch) if config.host is not None else None
        self.prefetcher = (
            StoragePrefetcher(adapter, config, settings.storage, self._host.step, stopwatch)
            if self._host is not None and settings.storage is not None
            else None
        )

    def serve(self, key: Key, *, checked: bool) -> Served:
        """Admit a request: prefetch, match, load back, compute the rest, and cache it; unless it is too large.

        The prefetch loads pages that are only in storage to the host. The oldest requests finish when too many run, or
        when too few slots are free. With `checked` the bytes of the hit are read back, and after the insert those of
        the whole prompt; InvariantError when they differ. Bytes from storage are always read back.
        """
        if self._host is not None:
            self._host.step()
        prefetched = 0 if self.prefetcher is None else self.prefetcher.prefetch(key, checked=checked)
        if len(self._running) >= self._max_running:
            self._finish_oldest()
        found = self._time(self._adapter.match, key, chunked=False)
        if checked:
            self._contents.verify(key, found.device_indices)
        request = self._begin(key, found)
        on_device = len(found.device_indices)
        loaded = request.cached - on_device
        if loaded and (checked or prefetched):
            self._verify_load(request)
        gained = found.host_hit_length if loaded else 0
        if not self._take_slots(request):
            return Served({}, gained, fits=False)
        gained += self._compute(request, found.branching_seqlen, checked=checked)
        self._running.append(request)
        from_storage = min(prefetched, loaded)
        hits = {Tier.DEVICE: on_device, Tier.HOST: loaded - from_storage, Tier.STORAGE: from_storage}
        return Served({tier.value: tokens for tier, tokens in hits.items()}, gained, fits=True)

    def finish_all(self) -> None:
        """Finish every running request, and wait for every transfer."""
        while self._running:
            self._finish_oldest()
        if self._host is not None:
            self._host.drain()

    def held(self) -> dict[str, Slots]:
        """The slots that running requests own, by component: those of their last, incomplete pages."""
        full = np.concatenate([NO_SLOTS, *(request.table[request.cached :] for request in self._running)])
        held = dict.fromkeys(self._config.components, NO_SLOTS)
        held[Component.FULL.value] = full
        if Component.SWA in self._config.components:
            partners = self._adapter.partners(full)
            held[Component.SWA.value] = partners[partners != 0]
        return held

    def _begin(self, key: Key, found: MatchResult) -> _RunningRequest:
        """Lock the hit, together with the part that can be loaded back from the host."""
        receipt = self._time(self._adapter.lock, found.device_anchor)
        finished = self._load(found)
        if finished is None:
            return _RunningRequest(key, found.device_indices, len(found.device_indices), receipt)
        self._time(self._adapter.unlock, receipt)
        table = np.concatenate((found.device_indices, finished.slots))
        return _RunningRequest(key, table, len(table), finished.receipt)

    def _load(self, found: MatchResult) -> FinishedLoad | None:
        host = self._host
        if host is None or not host.has_host_data(found):
            return None
        # The data to load must stay on the host while running requests finish to make free slots.
        receipt = self._time(self._adapter.lock_host, found.best_match)
        load = self._fit(lambda: host.start(found))
        self._time(self._adapter.unlock_host, receipt)
        return None if load is None else host.finish(found, load)

    def _verify_load(self, request: _RunningRequest) -> None:
        """Check that the loaded slots have the right bytes, and that a match finds them on the device."""
        self._contents.verify(request.key, request.table)
        again = self._time(self._adapter.match, request.key, chunked=True).device_indices
        if not np.array_equal(again, request.table):
            raise violation("FLOW-10", "match after a load", f"its {request.cached} slots", f"{len(again)} slots")

    def _take_slots(self, request: _RunningRequest) -> bool:
        """Allocate slots for the uncached part, in whole pages; False, with all released, when they do not fit."""
        missing = len(request.key.tokens) - request.cached
        slots = self._fit(lambda: self._time(self._adapter.allocate, missing + -missing % self._config.page_size))
        if slots is None:
            self._time(self._adapter.unlock, request.receipt)
            return False
        request.table = np.concatenate((request.table, slots))
        return True

    def _fit(self, take: Callable[[], T | None]) -> T | None:
        """Take slots; while there are none, wait for transfers and finish running requests, oldest first."""
        taken = take()
        if taken is None and self._host is not None:
            # Nodes are pinned while they are backed up.
            self._host.drain()
            taken = take()
        while taken is None and self._running:
            self._finish_oldest()
            taken = take()
        return taken

    def _compute(self, request: _RunningRequest, branching: int | None, *, checked: bool) -> int:
        """Write and cache the new pages, in two steps where prompts branch. Returns how many tokens the tree gained."""
        whole = aligned_count(request.key, self._config)
        self._contents.write(request.key, request.table[request.cached :], request.cached)
        inserted = 0
        for end in sorted({min(branching or whole, whole), whole}):
            if end > request.cached:
                result = self._cache_up_to(request, end)
                inserted += result.accepted_length - result.prefix_length
            if checked:
                self._contents.verify(request.key, request.table[: request.cached])
        return inserted

    def _cache_up_to(self, request: _RunningRequest, end: int) -> InsertResult:
        """Insert the first `end` tokens of a request, use the slots that the tree kept, and move the lock there."""
        key = cut(request.key, end, self._config)
        state = self._state_after(key) if self._has_states else None
        result = self._time(
            self._adapter.insert,
            key,
            request.table[:end],
            shared=request.cached,
            window_start=0,
            state=state,
            priority=0,
        )
        if state is not None and not result.state_adopted:
            self._adapter.free_state(state)
        kept = self._time(self._adapter.match, key, chunked=True)
        if not len(kept.device_indices) == result.accepted_length == end:
            raise violation("REQ-4", f"match after the insert of {end} tokens", end, (len(kept.device_indices), result))
        receipt = self._time(self._adapter.lock, result.node)
        self._time(self._adapter.unlock, request.receipt)
        request.receipt = receipt
        request.table = np.concatenate((kept.device_indices, request.table[end:]))
        request.cached = end
        return result

    def _state_after(self, key: Key) -> int:
        state = self._fit(lambda: self._time(self._adapter.allocate_state))
        if state is None:
            raise violation("EVICT-1", "allocate_state for the only request", "a slot", None)
        self._contents.write_state(key, state)
        return state

    def _finish_oldest(self) -> None:
        request = self._running.popleft()
        self._time(self._adapter.unlock, request.receipt)
        if len(request.table) > request.cached:
            self._time(self._adapter.free, request.table[request.cached :])


class StoragePrefetcher:
    """Runs the prefetches of one cache, one request after the other. `step`: a step of the scheduler.

    `asked`, `refused`: numbers of prefetches. `loaded_tokens`: the tokens they loaded, as the cache reports.
    """

    def __init__(
        self,
        adapter: CacheAdapter,
        config: CacheConfig,
        settings: StorageSettings,
        step: Callable[[], None],
        stopwatch: Stopwatch,
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._queue_steps = settings.queue_steps
        self._is_timed = settings.stop_policy is StopPolicy.TIMEOUT
        self._is_threaded = config.storage is not None and config.storage.executor is ExecutorKind.THREADED
        self._step_cache = step
        self._time = stopwatch.time
        self.asked = 0
        self.refused = 0
        self.loaded_tokens = 0

    def prefetch(self, key: Key, *, checked: bool) -> int:
        """Prefetch for an arriving request until it may start. Returns the number of tokens loaded.

        With `checked`, raises InvariantError unless a match gained as many tokens at some step (FLOW-10).
        """
        lengths: list[int] = []
        has_snapshot = checked and Capability.SNAPSHOT in self._adapter.capabilities

        def record_length() -> None:
            if has_snapshot:
                lengths.append(self._expected_length(key))

        record_length()
        self.asked += 1
        ticket = self._time(self._adapter.prefetch, key)
        for _ in range(self._queue_steps):
            self._step()
            record_length()
        loaded = self._refused() if ticket is None else self._wait(ticket, record_length)
        self._require_gain(key, loaded, lengths)
        self.loaded_tokens += loaded
        return loaded

    def _refused(self) -> int:
        self.refused += 1
        return 0

    def _wait(self, ticket: Handle, record_length: Callable[[], None]) -> int:
        """Check the prefetch at each step until the request may start. A check may stop it and insert its pages."""
        for _ in range(_MAX_STEPS):
            loaded = self._time(self._adapter.check_prefetch, ticket)
            record_length()
            if loaded is not None:
                return loaded
            self._step()
            record_length()
        self._adapter.drain()
        loaded = self._time(self._adapter.check_prefetch, ticket)
        record_length()
        if loaded is None:
            raise violation("FETCH-3", "check of a prefetch, with nothing in flight", "a number of tokens", loaded)
        return loaded

    def _step(self) -> None:
        if self._is_threaded:
            time.sleep(STEP_S)
        if self._is_timed:
            self._adapter.advance_clock(STEP_S)
        self._step_cache()

    def _require_gain(self, key: Key, loaded: int, lengths: list[int]) -> None:
        gains = {max(0, length - lengths[0]) for length in lengths}
        if gains and loaded not in gains:
            place = f"a prefetch for {len(key.tokens)} tokens, {lengths[0]} of them cached before"
            raise violation("FLOW-10", place, f"one of the gains of a match, {sorted(gains)}", loaded)

    def _expected_length(self, key: Key) -> int:
        """The number of tokens of a prompt that a match finds on both tiers, by the oracle."""
        model = Model(
            components=self._config.components,
            page_size=self._config.page_size,
            sliding_window_size=self._config.sliding_window_size,
            bigram=self._config.bigram,
        )
        model.adopt(self._adapter.snapshot())
        return model.expected_match(key).best


@dataclass(frozen=True, slots=True, eq=False)
class FinishedLoad:
    """A finished load: the slots from the device anchor to the best match, and the receipt of the best match's lock."""

    slots: Slots
    receipt: Handle


class HostLoader:
    """Runs the transfers of one cache."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig, stopwatch: Stopwatch) -> None:
        self._adapter = adapter
        executors = [tier.executor for tier in (config.host, config.storage) if tier is not None]
        self._is_stepped = ExecutorKind.STEPPED in executors
        self._time = stopwatch.time

    def step(self) -> None:
        """Let the cache apply the results of finished transfers, and start queued ones.

        Stepped transfers end in the step after the one that started them. Stepped storage does one batch of each
        request in a step.
        """
        for one in self._adapter.pending() if self._is_stepped else ():
            move = self._adapter.complete if isinstance(one.kind, TransferKind) else self._adapter.advance
            self._time(move, one.ticket)
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
