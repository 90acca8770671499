"""Epoch: serves requests with one cache, with the checks of the settings."""

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


class Epoch:
    """Serves one request after the other, counts, and audits the cache at every `settings.check_every`-th."""

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
        """Replay the next request. Raises InvariantError when a law is violated."""
        checked = self._check_every > 0 and (self._tally.requests + 1) % self._check_every == 0
        served = self.session.serve(Key(request_tokens(request), SHARED), checked=checked)
        self._tally.add(request, served, self._occupied_tokens())
        if checked:
            self.audit.check(self.session.held())

    def counters(self) -> Mapping[str, int]:
        """The cache's counters so far, if it declares COUNTERS, and those of the prefetches."""
        counters = dict(self.adapter.counters()) if Capability.COUNTERS in self.adapter.capabilities else {}
        if (prefetcher := self.session.prefetcher) is not None:
            counters |= {
                "prefetches": prefetcher.asked,
                "prefetches_refused": prefetcher.refused,
                "fetched_tokens": prefetcher.loaded_tokens,
            }
        return counters

    def _occupied_tokens(self) -> dict[str, int]:
        """The FULL tokens in the tree, by tier, for the tiers with size counters."""
        if Capability.SIZES not in self.adapter.capabilities:
            return {}
        sizes = {Tier.DEVICE.value: self.adapter.sizes()[Component.FULL]}
        if self._has_host:
            sizes[Tier.HOST.value] = self.adapter.host_sizes()[Component.FULL]
        return {tier: full.evictable + full.protected for tier, full in sizes.items()}
