"""Passage: the way of some requests through one cache, with the checks that were asked for."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.replay.audit import Audit
from hicache.testing.replay.configuration import ReplaySettings
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.replay.session import Session
from hicache.testing.replay.tally import Tally
from hicache.testing.traces import TraceRequest, request_tokens
from hicache.types import SHARED, Component, Key, Tier


class Passage:
    """Serves request after request, counts, and audits the cache at each `settings.check_every`-th of the tally."""

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, settings: ReplaySettings, tally: Tally, stopwatch: Stopwatch
    ) -> None:
        self.adapter = adapter
        self.audit = Audit(adapter, config)
        self.session = Session(adapter, config, settings, stopwatch)
        self._tally = tally
        self._has_host = config.host is not None
        self._check_every = settings.check_every

    def serve(self, request: TraceRequest) -> None:
        """Replay the next request. Raises InvariantError when a law is broken."""
        checked = self._check_every > 0 and (self._tally.requests + 1) % self._check_every == 0
        served = self.session.serve(Key(request_tokens(request), SHARED), checked=checked)
        self._tally.add(request, served, self._occupied_tokens())
        if checked:
            self.audit.check(self.session.held())

    def counters(self) -> Mapping[str, int]:
        """What the cache has counted so far, if it counts, and the prefetches."""
        counters = dict(self.adapter.counters()) if Capability.COUNTERS in self.adapter.capabilities else {}
        if (fetcher := self.session.fetcher) is not None:
            counters |= {
                "prefetches": fetcher.asked,
                "prefetches_refused": fetcher.refused,
                "fetched_tokens": fetcher.came_tokens,
            }
        return counters

    def _occupied_tokens(self) -> dict[str, int]:
        """What the tree holds of FULL, by tier, as far as it can be told."""
        if Capability.SIZES not in self.adapter.capabilities:
            return {}
        sizes = {Tier.DEVICE.value: self.adapter.sizes()[Component.FULL]}
        if self._has_host:
            sizes[Tier.HOST.value] = self.adapter.host_sizes()[Component.FULL]
        return {tier: full.evictable + full.protected for tier, full in sizes.items()}
