"""Passage: the way of one trace through one cache, with the checks that were asked for."""

from __future__ import annotations

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
    """Serves request after request, counts, and audits the cache at each `settings.check_every`-th."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig, settings: ReplaySettings) -> None:
        self.tally = Tally((Tier.DEVICE,) if config.host is None else (Tier.DEVICE, Tier.HOST))
        self.stopwatch = Stopwatch()
        self.audit = Audit(adapter, config)
        self._adapter = adapter
        self._has_host = config.host is not None
        self._check_every = settings.check_every
        self._session = Session(adapter, config, self.stopwatch, running=settings.running)

    def serve(self, request: TraceRequest) -> None:
        """Replay the next request. Raises InvariantError when a law is broken."""
        checked = self._check_every > 0 and (self.tally.requests + 1) % self._check_every == 0
        served = self._session.serve(Key(request_tokens(request), SHARED), checked=checked)
        self.tally.add(request, served, self._occupied_tokens())
        if checked:
            self.audit.check(self._session.held())

    def end(self) -> None:
        """Finish what runs and what is under way."""
        self._session.finish_all()

    def check_drained(self) -> None:
        """After the end, check everything, and see all slots come back. Raises InvariantError."""
        self.audit.check_drained()

    def _occupied_tokens(self) -> dict[str, int]:
        """What the tree holds of FULL, by tier, as far as it can be told."""
        if Capability.SIZES not in self._adapter.capabilities:
            return {}
        sizes = {Tier.DEVICE.value: self._adapter.sizes()[Component.FULL]}
        if self._has_host:
            sizes[Tier.HOST.value] = self._adapter.host_sizes()[Component.FULL]
        return {tier: full.evictable + full.protected for tier, full in sizes.items()}
