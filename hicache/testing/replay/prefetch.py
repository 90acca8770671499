"""StoragePrefetcher: prefetches a prompt from storage to the host before it is served, as a server does."""

from __future__ import annotations

import time
from collections.abc import Callable

from hicache.config import CacheConfig, ExecutorKind
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.model import Model
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.replay.storage import StorageSettings
from hicache.testing.violation import violation
from hicache.types import Handle, Key, StopPolicy

STEP_S = 0.001
"""The duration of a scheduler step: real time with threads, otherwise on the cache's clock."""

_MAX_STEPS = 1000
"""After so many steps a request waits until nothing is in flight."""


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
