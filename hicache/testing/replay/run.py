"""replay(): a whole trace through a new cache, with its totals, its limits, and the laws checked on the way."""

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
from hicache.testing.replay.limits import limits
from hicache.testing.replay.lives import Lives
from hicache.testing.replay.outcome import SCHEMA_VERSION, HostOutcome, ReplayOutcome
from hicache.testing.replay.part import share
from hicache.testing.replay.storage import NEVER, StorageSettings
from hicache.testing.replay.storage_outcome import StorageOutcome, storage_outcome
from hicache.testing.replay.survey import Survey, survey
from hicache.testing.traces import Trace
from hicache.types import Pool

Progress = Callable[[int, int], None]
"""Called after each request with how many were replayed, and how many there are."""


def replay(
    trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings, progress: Progress | None
) -> ReplayOutcome:
    """Drive a new cache with a trace. A broken law ends the replay, and stands in the outcome's `broken`.

    Streams the file five times, once more with a host tier, and four times more with storage; memory is that of the
    cache, and some bytes for each block of the trace. Raises TraceError on a malformed line or an empty trace, and
    ConfigurationError when the settings can't be served.
    """
    begin, totals = perf_counter(), survey(trace, settings.page_size)
    if not totals.requests:
        raise TraceError(f"{trace.path}: there is no request to replay")
    with TemporaryDirectory(prefix="hicache-replay-") as directory:
        config = cache_config(settings, totals, Path(directory))
        _require_served(config, adapter)
        with closing(Lives(adapter, config, settings)) as lives:
            broken = _broken(lives, lambda: _drive(lives, trace, totals.requests, settings.storage, progress))
            # What the last check moves is not the trace's.
            host = _host_outcome(lives, config)
            broken = broken or _broken(lives, lives.check_drained)
    tally, reached = lives.tally, limits(trace, config)
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
        latency=lives.stopwatch.summaries(),
        checks=lives.checks,
        broken=broken,
        seconds=round(perf_counter() - begin, 3),
        peak_rss_bytes=_peak_rss_bytes(),
        timeline=tuple(tally.timeline.windows),
        host=host,
        storage=_storage_outcome(lives, config, trace, totals, settings),
    )


def _drive(
    lives: Lives, trace: Trace, requests: int, storage: StorageSettings | None, progress: Progress | None
) -> None:
    middle = None if storage is None else storage.middle(requests)
    try:
        for number, request in enumerate(trace):
            if number == middle:
                lives.end_part()
                if storage is not None and storage.restart_at < NEVER:
                    lives.restart()
            lives.serve(request)
            if progress is not None:
                progress(number + 1, requests)
        lives.finish()
    finally:
        lives.note_part()


def _broken(lives: Lives, act: Callable[[], None]) -> str | None:
    """The message of the law that an act was found to break, or None."""
    try:
        act()
    except InvariantError as error:
        return f"after {lives.tally.requests} requests: {error}"
    return None


def _require_served(config: CacheConfig, adapter: type[CacheAdapter]) -> None:
    """Raise ConfigurationError for what this machine or this adapter does not have."""
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


def _host_outcome(lives: Lives, config: CacheConfig) -> HostOutcome | None:
    if config.host is None:
        return None
    cache, counters = lives.cache, lives.counters()
    return HostOutcome(
        capacity_tokens=dict(config.host.capacity_tokens),
        bytes_backed_up=counters.get("bytes_backed_up"),
        bytes_loaded=counters.get("bytes_loaded"),
        backups_refused=counters.get("backups_refused"),
        bytes_per_token=_bytes_per_token(cache) if Capability.BYTES in cache.capabilities else None,
    )


def _storage_outcome(
    lives: Lives, config: CacheConfig, trace: Trace, totals: Survey, settings: ReplaySettings
) -> StorageOutcome | None:
    if config.storage is None or settings.storage is None:
        return None
    restarted = settings.storage.restart_at < NEVER
    return storage_outcome(config.storage, trace, totals, config.page_size, lives.parts, restarted=restarted)


def _bytes_per_token(cache: CacheAdapter) -> int:
    layers = {pool: cache.layers(pool) for pool in (Pool.KV, Pool.INDEXER)}
    return sum(count * cache.slot_bytes(pool) for pool, count in layers.items() if count)


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
