"""replay(): runs a whole trace on new caches, with totals, limits, and law checks during the replay."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from hicache.config import CacheConfig, ExecutorKind
from hicache.errors import ConfigurationError, InvariantError, TraceError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.devices import missing_device
from hicache.testing.driving.pools import pools_of
from hicache.testing.plugin.failures import causes_of
from hicache.testing.replay.audit import Audit
from hicache.testing.replay.configuration import (
    NEVER,
    ReplaySettings,
    StorageSettings,
    cache_config,
    lacks_for_replay,
    with_geometry,
)
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.replay.limits import Survey, limits, survey
from hicache.testing.replay.outcome import SCHEMA_VERSION, HostOutcome, ReplayOutcome, StorageOutcome, storage_outcome
from hicache.testing.replay.request_session import RequestAudit, RequestSession
from hicache.testing.replay.session import Session
from hicache.testing.replay.tally import ReplayTally, TallyPart, part_since, share
from hicache.testing.traces import Trace, TraceRequest, request_tokens
from hicache.types import SHARED, Component, Key, Tier

Progress = Callable[[int, int], None]
"""Called after each request with the number of replayed requests and the number of all requests."""


def replay(
    trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings, progress: Progress | None
) -> ReplayOutcome:
    """Run a trace on a new cache. A violated law ends the replay, and its message is the outcome's `broken`.

    Streams the file five times, once more with a host tier, four times more with storage, and keeps some bytes for each
    block. Raises TraceError for a malformed line or an empty trace, ConfigurationError for what cannot be served.
    """
    begin, totals = perf_counter(), _surveyed(trace, settings.page_size)
    with TemporaryDirectory(prefix="hicache-replay-") as directory:
        config = _served(with_geometry(cache_config(settings, totals, Path(directory)), adapter), adapter)
        with closing(ReplayEpochs(adapter, config, settings)) as epochs:
            found = _violated(lambda: _drive(epochs, trace, totals.requests, settings.storage, progress))
            host = _host_outcome(epochs, config)  # before the transfers of the last check
            found = found or _violated(epochs.check_drained)
    tally, reached = epochs.tally, limits(trace, config)
    return ReplayOutcome(
        schema_version=SCHEMA_VERSION,
        trace=trace.path.name,
        adapter=f"{adapter.__module__}:{adapter.__qualname__}",
        configuration=config.name,
        capacity_tokens=dict(config.capacity_tokens),
        footprint_tokens=totals.footprint_tokens,
        running=settings.running,
        requests=tally.requests,
        too_large=tally.too_large,
        skipped_lines=trace.skipped,
        input_tokens=tally.input_tokens,
        hit_tokens=tally.hit_tokens,
        hit_rate=share(sum(tally.hit_tokens.values()), tally.input_tokens),
        hit_rates={tier: share(tokens, tally.input_tokens) for tier, tokens in tally.hit_tokens.items()},
        hit_lengths=tally.hit_lengths,
        refused_tokens=dict(tally.refused_tokens) if Capability.MISSES in adapter.capabilities else None,
        lost_tokens=tally.lost_tokens,
        lru_hit_rate=share(reached.lru_tokens, totals.input_tokens),
        device_lru_hit_rate=share(reached.device_lru_tokens, totals.input_tokens),
        optimal_hit_rate=share(reached.optimal_tokens, totals.input_tokens),
        evicted_tokens=tally.evicted_tokens,
        pinned_tokens=tally.pinned_tokens,
        latency=epochs.stopwatch.summaries(),
        checks=epochs.checks,
        broken=None if found is None else f"after {tally.requests} requests: {found}",
        causes=() if found is None else causes_of(found, ()),
        seconds=round(perf_counter() - begin, 3),
        peak_rss_bytes=_peak_rss_bytes(),
        timeline=tuple(tally.timeline.windows),
        host=host,
        storage=_storage_outcome(epochs, config, trace, totals, settings),
    )


def _surveyed(trace: Trace, page_size: int) -> Survey:
    totals = survey(trace, page_size)
    if not totals.requests:
        raise TraceError(f"{trace.path}: contains no request")
    return totals


def _drive(
    epochs: ReplayEpochs, trace: Trace, requests: int, storage: StorageSettings | None, progress: Progress | None
) -> None:
    middle = None if storage is None else storage.middle(requests)
    try:
        for number, request in enumerate(trace):
            if number == middle:
                epochs.end_part()
                if storage is not None and storage.restart_at < NEVER:
                    epochs.restart()
            epochs.serve(request)
            if progress is not None:
                progress(number + 1, requests)
        epochs.finish()
    finally:
        epochs.note_part()


def _violated(call: Callable[[], None]) -> InvariantError | None:
    """The error of the law that `call` was found to violate, or None."""
    try:
        call()
    except InvariantError as error:
        return error
    return None


def _served(config: CacheConfig, adapter: type[CacheAdapter]) -> CacheConfig:
    """The configuration. Raises ConfigurationError for what this machine or the adapter lacks."""
    if reason := missing_device(config.device):
        raise ConfigurationError(reason)
    needs = [*lacks_for_replay(adapter.profile, adapter.capabilities)]
    needs += [Capability.VERBS, Capability.HOST] if config.host is not None else []
    needs += [Capability.STEPPED] if config.host is not None and config.host.executor is ExecutorKind.STEPPED else []
    needs += [Capability.STORAGE] if config.storage is not None else []
    for need in needs:
        if need not in adapter.capabilities:
            raise ConfigurationError(f"{config.name}: {adapter.__qualname__} does not declare {need.name}")
    return config


def _host_outcome(epochs: ReplayEpochs, config: CacheConfig) -> HostOutcome | None:
    if config.host is None:
        return None
    cache, counters = epochs.cache, epochs.counters()
    return HostOutcome(
        capacity_tokens=dict(config.host.capacity_tokens),
        bytes_backed_up=counters.get("bytes_backed_up"),
        bytes_loaded=counters.get("bytes_loaded"),
        backups_refused=counters.get("backups_refused"),
        bytes_per_token=_bytes_per_token(cache, config) if Capability.BYTES in cache.capabilities else None,
    )


def _storage_outcome(
    epochs: ReplayEpochs, config: CacheConfig, trace: Trace, totals: Survey, settings: ReplaySettings
) -> StorageOutcome | None:
    if config.storage is None or settings.storage is None:
        return None
    restarted = settings.storage.restart_at < NEVER
    return storage_outcome(config.storage, trace, totals, config.page_size, epochs.parts, restarted=restarted)


def _bytes_per_token(cache: CacheAdapter, config: CacheConfig) -> int:
    layers = {pool: cache.layers(pool) for pool in pools_of(config, Component.FULL)}
    return sum(count * cache.slot_bytes(pool) for pool, count in layers.items() if count)


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class ReplayEpochs:
    """Serves a trace in parts with caches that are each opened on the storage of the one before.

    `cache`: the open one. `tally`, `stopwatch`: over all caches.
    """

    def __init__(self, adapter: type[CacheAdapter], config: CacheConfig, settings: ReplaySettings) -> None:
        self._adapter = adapter
        self._config = config
        self._settings = settings
        tiers = (Tier.DEVICE, *((Tier.HOST,) if config.host else ()), *((Tier.STORAGE,) if config.storage else ()))
        self.tally = ReplayTally(tiers, config.page_size)
        self.stopwatch = Stopwatch()
        self.parts: list[TallyPart] = []
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
        return Epoch(_opened(self._adapter, self._config), self._config, self._settings, self.tally, self.stopwatch)


class OpeningError(Exception):
    """An adapter raised when it was opened. `__cause__` is what it raised."""


def _opened(adapter: type[CacheAdapter], config: CacheConfig) -> CacheAdapter:
    """A new cache. Raises OpeningError for an error of the cache; a ConfigurationError is raised unchanged."""
    try:
        return adapter(config)
    except ConfigurationError:
        raise
    except Exception as error:
        name = f"{adapter.__module__}:{adapter.__qualname__}"
        raise OpeningError(f"the adapter {name} could not be opened: {type(error).__name__}: {error}") from error


def _door(
    adapter: CacheAdapter, config: CacheConfig, settings: ReplaySettings, stopwatch: Stopwatch
) -> tuple[Session, Audit] | tuple[RequestSession, RequestAudit]:
    """What drives and audits a cache: by its verbs, or without them by its requests."""
    if Capability.VERBS in adapter.capabilities:
        session = Session(adapter, config, settings, stopwatch)
        return session, Audit(adapter, config, session.held)
    requests = RequestSession(adapter, config, settings, stopwatch)
    return requests, RequestAudit(adapter, config, requests)


class Epoch:
    """Serves one request after the other with one cache, counts, and audits it at every `settings.check_every`-th."""

    def __init__(
        self,
        adapter: CacheAdapter,
        config: CacheConfig,
        settings: ReplaySettings,
        tally: ReplayTally,
        stopwatch: Stopwatch,
    ) -> None:
        self.adapter = adapter
        self.session: Session | RequestSession
        self.audit: Audit | RequestAudit
        self.session, self.audit = _door(adapter, config, settings, stopwatch)
        self._tally = tally
        self._has_host = config.host is not None
        self._check_every = settings.check_every

    def serve(self, request: TraceRequest) -> None:
        """Replay the next request. Raises InvariantError when a law is violated."""
        checked = self._check_every > 0 and (self._tally.requests + 1) % self._check_every == 0
        served = self.session.serve(Key(request_tokens(request), SHARED), checked=checked)
        self._tally.add(request, served, self._occupied_tokens())
        if checked:
            self.audit.check()

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
        on_device = self.adapter.sizes()
        self._tally.note_pinned(on_device)
        sizes = {Tier.DEVICE.value: on_device[Component.FULL]}
        if self._has_host:
            sizes[Tier.HOST.value] = self.adapter.host_sizes()[Component.FULL]
        return {tier: full.evictable + full.protected for tier, full in sizes.items()}
