"""Session: serves the prompts of a trace from a cache, a few of them at a time, and counts where their tokens were."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.driving.contents import Contents
from hicache.testing.driving.oracle import cached_length
from hicache.testing.driving.prompts import aligned_count
from hicache.testing.driving.running import OpenPrefetch
from hicache.testing.driving.scheduler import ScheduledRequest, Scheduler
from hicache.testing.replay.configuration import ReplaySettings, StorageSettings
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.violation import violation
from hicache.types import NO_SLOTS, Component, Handle, Key, Slots, StopPolicy, Tier

STEP_S = 0.001
"""The duration of a scheduler step: real time with threads, otherwise on the cache's clock."""

_MAX_STEPS = 1000
"""After so many steps a request waits until nothing is in flight."""


@dataclass(frozen=True, slots=True)
class Served:
    """The hits of a prompt, in tokens by tier, and how many tokens the tree gained on the device, or None if unknown.

    Loaded tokens that were prefetched for this prompt are hits of storage. `refused_tokens`: as in MatchResult; None
    for a cache without MISSES. `fits`: the prompt was served; otherwise it has no hits.
    """

    hit_tokens: Mapping[str, int]
    gained_tokens: int | None
    refused_tokens: Mapping[str, int] | None
    fits: bool


class Session:
    """One cache and its running requests, at most `settings.running` at the same time.

    `prefetcher`: runs the prefetches from storage, or None without storage.
    """

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, settings: ReplaySettings, stopwatch: Stopwatch
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._max_running = settings.running
        self._contents = Contents(adapter, config)
        self._scheduler = Scheduler(adapter, config, call=stopwatch.time, loads_may_fail=False)
        self.prefetcher = (
            StoragePrefetcher(adapter, config, settings.storage, self._scheduler)
            if config.host is not None and settings.storage is not None
            else None
        )

    def serve(self, key: Key, *, checked: bool) -> Served:
        """Admit a request: prefetch, match, load back, compute the rest, and cache it; unless it is too large.

        The prefetch loads pages that are only in storage to the host. The oldest requests finish when too many run, or
        when too few slots are free. With `checked` the bytes of the hit are read back, and after the insert those of
        the whole prompt; InvariantError when they differ. Bytes from storage are always read back.
        """
        scheduler = self._scheduler
        if self._config.host is not None:
            # Stepped transfers end in the step after the one that started them.
            scheduler.advance()
            scheduler.step()
        prefetched = 0 if self.prefetcher is None else self.prefetcher.prefetch(key, checked=checked)
        if len(scheduler.computed) >= self._max_running:
            scheduler.release_oldest()
        found = scheduler.match(key)
        if checked:
            self._contents.verify(key, found.device_indices)
        request = scheduler.begin(key, found)
        on_device = len(found.device_indices)
        loaded = request.cached_tokens - on_device
        if loaded and (checked or prefetched):
            self._verify_load(request)
        gained = found.host_hit_length if loaded else 0
        if not scheduler.grow(request, len(key.tokens)):
            scheduler.release(request)
            return Served({}, gained, refused_tokens=None, fits=False)
        gained += self._compute(request, found.branching_seqlen, checked=checked)
        scheduler.computed.append(request)
        from_storage = min(prefetched, loaded)
        hits = {Tier.DEVICE: on_device, Tier.HOST: loaded - from_storage, Tier.STORAGE: from_storage}
        refused = found.tokens_refused if Capability.MISSES in self._adapter.capabilities else None
        return Served({tier.value: tokens for tier, tokens in hits.items()}, gained, refused, fits=True)

    def finish_all(self) -> None:
        """Finish every running request, and wait for every transfer."""
        while self._scheduler.computed:
            self._scheduler.release_oldest()
        if self._config.host is not None:
            self._scheduler.drain()

    def held(self) -> dict[str, Slots]:
        """The slots that running requests own, by component: those of their last, incomplete pages."""
        held = dict.fromkeys(self._config.components, NO_SLOTS)
        held[Component.FULL.value] = full = self._scheduler.held_slots()
        if Component.SWA in self._config.components:
            partners = self._adapter.partners(full)
            held[Component.SWA.value] = partners[partners != 0]
        return held

    def _verify_load(self, request: ScheduledRequest) -> None:
        """Check that the loaded slots have the right bytes, and that a match finds them on the device."""
        self._contents.verify(request.key, request.table)
        again = self._scheduler.match(request.key, chunked=True).device_indices
        if not np.array_equal(again, request.table):
            raise violation(
                "FLOW-10", "match after a load", f"its {request.cached_tokens} slots", f"{len(again)} slots"
            )

    def _compute(self, request: ScheduledRequest, branching: int | None, *, checked: bool) -> int:
        """Write and cache the new pages, in steps that end where prompts branch and after each checkpoint interval.

        Returns how many tokens the tree gained.
        """
        whole = aligned_count(request.key, self._config)
        self._contents.write(request.key, request.own_slots(), request.cached_tokens)
        inserted, interval = 0, self._config.mamba_checkpoint_interval or whole or 1
        for end in sorted({min(branching or whole, whole), whole, *range(interval, whole, interval)}):
            if end > request.cached_tokens:
                result = self._scheduler.insert(request, end, self._contents.write_state)
                if result is None:
                    raise violation("EVICT-1", "allocate_state for the only request", "a slot", None)
                inserted += result.accepted_length - result.prefix_length
            if checked:
                self._contents.verify(request.key, request.table[: request.cached_tokens])
        return inserted


class StoragePrefetcher:
    """Runs the prefetches of one cache, one request after the other.

    `asked`, `refused`: numbers of prefetches. `loaded_tokens`: the tokens they loaded, as the cache reports.
    """

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, settings: StorageSettings, scheduler: Scheduler
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._queue_steps = settings.queue_steps
        self._is_timed = settings.stop_policy is StopPolicy.TIMEOUT
        self._is_threaded = config.storage is not None and config.storage.executor is ExecutorKind.THREADED
        self._scheduler = scheduler
        self.asked = 0
        self.refused = 0
        self.loaded_tokens = 0

    def prefetch(self, key: Key, *, checked: bool) -> int:
        """Prefetch for an arriving request until it may start. Returns the number of tokens loaded.

        With `checked`, raises InvariantError unless a match gained as many tokens at some step (FLOW-10).
        """
        has_snapshot = checked and Capability.SNAPSHOT in self._adapter.capabilities
        before = self._cached_length(key) if has_snapshot else 0
        self.asked += 1
        ticket = self._scheduler.start_prefetch(key)
        prefetch = OpenPrefetch(ticket, key, before, {0})

        def record_gain() -> None:
            if has_snapshot:
                prefetch.record_length(self._cached_length(key))

        for _ in range(self._queue_steps):
            self._step()
            record_gain()
        if ticket is None:
            self.refused += 1
            return 0
        loaded = self._wait(ticket, record_gain)
        if has_snapshot:
            prefetch.require_gain(loaded)
        self.loaded_tokens += loaded
        return loaded

    def _wait(self, ticket: Handle, record_gain: Callable[[], None]) -> int:
        """Check the prefetch at each step until the request may start. A check may stop it and insert its pages."""
        for _ in range(_MAX_STEPS):
            loaded = self._scheduler.check_prefetch(ticket)
            record_gain()
            if loaded is not None:
                return loaded
            self._step()
            record_gain()
        loaded = self._scheduler.end_prefetch(ticket)
        record_gain()
        return loaded

    def _step(self) -> None:
        if self._is_threaded:
            time.sleep(STEP_S)
        if self._is_timed:
            self._adapter.advance_clock(STEP_S)
        self._scheduler.advance()
        self._scheduler.step()

    def _cached_length(self, key: Key) -> int:
        return cached_length(key, self._adapter.snapshot(), self._config)
