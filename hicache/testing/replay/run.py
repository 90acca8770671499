"""replay(): runs a whole trace on a new cache, with totals, limits, and law checks during the replay."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from hicache.config import CacheConfig, ExecutorKind
from hicache.errors import ConfigurationError, InvariantError, TraceError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.plugin.devices import missing_device
from hicache.testing.replay.configuration import ReplaySettings, cache_config
from hicache.testing.replay.epochs import ReplayEpochs
from hicache.testing.replay.limits import limits
from hicache.testing.replay.outcome import SCHEMA_VERSION, HostOutcome, ReplayOutcome
from hicache.testing.replay.part import share
from hicache.testing.replay.storage import NEVER, StorageSettings
from hicache.testing.replay.storage_outcome import StorageOutcome, storage_outcome
from hicache.testing.replay.survey import Survey, survey
from hicache.testing.traces import Trace
from hicache.types import Pool

Progress = Callable[[int, int], None]
"""Called after each request with the number of replayed requests and the number of all requests."""


def replay(
    trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings, progress: Progress | None
) -> ReplayOutcome:
    """Run a trace on a new cache. A violated law ends the replay, and its message is the outcome's `broken`.

    Streams the file five times, once more with a host tier, and four times more with storage. Memory is that of the
    cache, and some bytes for each block of the trace. Raises TraceError for a malformed line or an empty trace, and
    ConfigurationError when this machine or the adapter does not support the settings.
    """
    begin, totals = perf_counter(), survey(trace, settings.page_size)
    if not totals.requests:
        raise TraceError(f"{trace.path}: contains no request")
    with TemporaryDirectory(prefix="hicache-replay-") as directory:
        config = cache_config(settings, totals, Path(directory))
        _require_served(config, adapter)
        with closing(ReplayEpochs(adapter, config, settings)) as epochs:
            broken = _broken(epochs, lambda: _drive(epochs, trace, totals.requests, settings.storage, progress))
            # Transfers of the last check are not part of the trace.
            host = _host_outcome(epochs, config)
            broken = broken or _broken(epochs, epochs.check_drained)
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
        lru_hit_rate=share(reached.lru_tokens, totals.input_tokens),
        device_lru_hit_rate=share(reached.device_lru_tokens, totals.input_tokens),
        optimal_hit_rate=share(reached.optimal_tokens, totals.input_tokens),
        evicted_tokens=tally.evicted_tokens,
        latency=epochs.stopwatch.summaries(),
        checks=epochs.checks,
        broken=broken,
        seconds=round(perf_counter() - begin, 3),
        peak_rss_bytes=_peak_rss_bytes(),
        timeline=tuple(tally.timeline.windows),
        host=host,
        storage=_storage_outcome(epochs, config, trace, totals, settings),
    )


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


def _broken(epochs: ReplayEpochs, act: Callable[[], None]) -> str | None:
    """The message of the law that `act` was found to violate, or None."""
    try:
        act()
    except InvariantError as error:
        return f"after {epochs.tally.requests} requests: {error}"
    return None


def _require_served(config: CacheConfig, adapter: type[CacheAdapter]) -> None:
    """Raise ConfigurationError for a device or capability that this machine or the adapter lacks."""
    if reason := missing_device(config.device):
        raise ConfigurationError(reason)
    if config.host is None:
        return
    needs = [Capability.HOST]
    needs += [Capability.STEPPED] if config.host.executor is ExecutorKind.STEPPED else []
    needs += [Capability.STORAGE] if config.storage is not None else []
    for need in needs:
        if need not in adapter.capabilities:
            raise ConfigurationError(f"{config.name}: {adapter.__qualname__} does not declare {need.name}")


def _host_outcome(epochs: ReplayEpochs, config: CacheConfig) -> HostOutcome | None:
    if config.host is None:
        return None
    cache, counters = epochs.cache, epochs.counters()
    return HostOutcome(
        capacity_tokens=dict(config.host.capacity_tokens),
        bytes_backed_up=counters.get("bytes_backed_up"),
        bytes_loaded=counters.get("bytes_loaded"),
        backups_refused=counters.get("backups_refused"),
        bytes_per_token=_bytes_per_token(cache) if Capability.BYTES in cache.capabilities else None,
    )


def _storage_outcome(
    epochs: ReplayEpochs, config: CacheConfig, trace: Trace, totals: Survey, settings: ReplaySettings
) -> StorageOutcome | None:
    if config.storage is None or settings.storage is None:
        return None
    restarted = settings.storage.restart_at < NEVER
    return storage_outcome(config.storage, trace, totals, config.page_size, epochs.parts, restarted=restarted)


def _bytes_per_token(cache: CacheAdapter) -> int:
    layers = {pool: cache.layers(pool) for pool in (Pool.KV, Pool.INDEXER)}
    return sum(count * cache.slot_bytes(pool) for pool, count in layers.items() if count)


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
