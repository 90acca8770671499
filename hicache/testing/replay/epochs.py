"""Epochs: the caches of one replay, each opened on the storage of the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import perf_counter

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay.configuration import ReplaySettings
from hicache.testing.replay.epoch import Epoch
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.replay.part import Part, part_since
from hicache.testing.replay.tally import Tally
from hicache.testing.traces import TraceRequest
from hicache.types import Tier


class ReplayEpochs:
    """Serves a trace in parts. `cache`: the open one. `tally`, `stopwatch`: over all caches."""

    def __init__(self, adapter: type[CacheAdapter], config: CacheConfig, settings: ReplaySettings) -> None:
        self._adapter = adapter
        self._config = config
        self._settings = settings
        tiers = (Tier.DEVICE, *((Tier.HOST,) if config.host else ()), *((Tier.STORAGE,) if config.storage else ()))
        self.tally = Tally(tiers)
        self.stopwatch = Stopwatch()
        self.parts: list[Part] = []
        self._counted: Counter[str] = Counter()
        self._checks = 0
        self._begin_s = perf_counter()
        self._epoch = self._open()

    @property
    def cache(self) -> CacheAdapter:
        """The open cache."""
        return self._epoch.adapter

    @property
    def checks(self) -> int:
        """The number of audits with a snapshot."""
        return self._checks + self._epoch.audit.checks

    def serve(self, request: TraceRequest) -> None:
        """Replay the next request. Raises InvariantError when a law is violated."""
        self._epoch.serve(request)

    def counters(self) -> Mapping[str, int]:
        """The counters of all caches together, if they declare COUNTERS."""
        counted = Counter(self._counted)
        counted.update(self._epoch.counters())
        return counted

    def finish(self) -> None:
        """Finish the running requests and all transfers. Raises InvariantError when a law is violated."""
        self._epoch.session.finish_all()

    def end_part(self) -> None:
        """Finish, and end the part."""
        self.finish()
        self.note_part()

    def note_part(self) -> None:
        """End the part: its counts are those since the part before."""
        now_s = perf_counter()
        self.parts.append(part_since(self.parts, self.tally, self.counters(), now_s - self._begin_s))
        self._begin_s = now_s

    def restart(self) -> None:
        """After a part, check everything in the cache, close it, and open another one on its storage.

        Raises InvariantError when a law is violated.
        """
        self._epoch.audit.check_when_idle()
        self._counted.update(self._epoch.counters())
        self._checks += self._epoch.audit.checks
        self.tally.start_epoch()
        self.close()
        self._epoch = self._open()

    def check_drained(self) -> None:
        """At the end, check everything, and that all slots become free. Raises InvariantError."""
        self._epoch.audit.check_drained()

    def close(self) -> None:
        """Close the open cache."""
        self._epoch.adapter.close()

    def _open(self) -> Epoch:
        return Epoch(self._adapter(self._config), self._config, self._settings, self.tally, self.stopwatch)
