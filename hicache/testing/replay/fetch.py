"""StorageFetcher: brings what storage has of a prompt to the host before it is served, as a server does."""

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
"""How long a step of the scheduler takes: for threads in truth, otherwise on the cache's clock."""

_MOST_STEPS = 1000
"""After these, a request waits until nothing is under way."""


class StorageFetcher:
    """Drives the prefetches of one cache, one request after the other. `step`: a step of the scheduler.

    `asked`, `refused`: prefetches. `came_tokens`: what they brought, as the cache says.
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
        self.came_tokens = 0

    def bring(self, key: Key, *, checked: bool) -> int:
        """Fetch for a request that arrives, until it may begin. Returns the tokens that came.

        With `checked`, raises InvariantError unless a match got as many more at some step (FLOW-10).
        """
        reaches: list[int] = []
        has_snapshot = checked and Capability.SNAPSHOT in self._adapter.capabilities

        def look() -> None:
            if has_snapshot:
                reaches.append(self._expected_length(key))

        look()
        self.asked += 1
        ticket = self._time(self._adapter.prefetch, key)
        for _ in range(self._queue_steps):
            self._step()
            look()
        came = self._refused() if ticket is None else self._wait(ticket, look)
        self._require_gain(key, came, reaches)
        self.came_tokens += came
        return came

    def _refused(self) -> int:
        self.refused += 1
        return 0

    def _wait(self, ticket: Handle, look: Callable[[], None]) -> int:
        """Ask at each step whether the request has to wait any longer. What is cut short lands as it is asked."""
        for _ in range(_MOST_STEPS):
            came = self._time(self._adapter.check_prefetch, ticket)
            look()
            if came is not None:
                return came
            self._step()
            look()
        self._adapter.drain()
        came = self._time(self._adapter.check_prefetch, ticket)
        look()
        if came is None:
            raise violation("FETCH-3", "check of a prefetch, with nothing under way any more", "what it brought", came)
        return came

    def _step(self) -> None:
        if self._is_threaded:
            time.sleep(STEP_S)
        if self._is_timed:
            self._adapter.advance_clock(STEP_S)
        self._step_cache()

    def _require_gain(self, key: Key, came: int, reaches: list[int]) -> None:
        gains = {max(0, reach - reaches[0]) for reach in reaches}
        if gains and came not in gains:
            place = f"a prefetch for {len(key.tokens)} tokens, of which {reaches[0]} were there"
            raise violation("FLOW-10", place, f"one of {sorted(gains)}, by which a match got more", came)

    def _expected_length(self, key: Key) -> int:
        """Tokens of a prompt that a match gets on both tiers, by the oracle."""
        model = Model(
            components=self._config.components,
            page_size=self._config.page_size,
            sliding_window_size=self._config.sliding_window_size,
            bigram=self._config.bigram,
        )
        model.adopt(self._adapter.snapshot())
        return model.expected_match(key).best
