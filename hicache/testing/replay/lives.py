"""Lives: the caches of one replay, each opened on the storage of the one before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from time import perf_counter

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay.configuration import ReplaySettings
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.replay.part import Part, part_since
from hicache.testing.replay.passage import Passage
from hicache.testing.replay.tally import Tally
from hicache.testing.traces import TraceRequest
from hicache.types import Tier


class Lives:
    """Serves a trace, and tells of its parts. `cache`: the one that is open. `tally`, `stopwatch`: over all of them."""

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
        self._passage = self._open()

    @property
    def cache(self) -> CacheAdapter:
        """The cache that is open."""
        return self._passage.adapter

    @property
    def checks(self) -> int:
        """Audits that looked at a whole cache."""
        return self._checks + self._passage.audit.checks

    def serve(self, request: TraceRequest) -> None:
        """Replay the next request. Raises InvariantError when a law is broken."""
        self._passage.serve(request)

    def counters(self) -> Mapping[str, int]:
        """What all caches have counted, those that count."""
        counted = Counter(self._counted)
        counted.update(self._passage.counters())
        return counted

    def finish(self) -> None:
        """Finish what runs and what is under way. Raises InvariantError when a law is broken."""
        self._passage.session.finish_all()

    def end_part(self) -> None:
        """The same, and then a part has ended."""
        self.finish()
        self.note_part()

    def note_part(self) -> None:
        """What was served since the last part is one of its own."""
        now_s = perf_counter()
        self.parts.append(part_since(self.parts, self.tally, self.counters(), now_s - self._begin_s))
        self._begin_s = now_s

    def restart(self) -> None:
        """At the end of a part, check all that the cache holds, close it, and open another one on its storage.

        Raises InvariantError when a law is broken.
        """
        self._passage.audit.check_at_rest()
        self._counted.update(self._passage.counters())
        self._checks += self._passage.audit.checks
        self.tally.forget_held()
        self.close()
        self._passage = self._open()

    def check_drained(self) -> None:
        """At the end, check everything, and see all slots come back. Raises InvariantError."""
        self._passage.audit.check_drained()

    def close(self) -> None:
        """Close the cache that is open."""
        self._passage.adapter.close()

    def _open(self) -> Passage:
        return Passage(self._adapter(self._config), self._config, self._settings, self.tally, self.stopwatch)
