"""replay(): a whole trace through a new cache, with its totals, its limits, and the laws checked on the way."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from contextlib import closing
from time import perf_counter

from hicache.config import CacheConfig, ExecutorKind
from hicache.errors import ConfigurationError, InvariantError, TraceError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.plugin.devices import missing_device
from hicache.testing.replay.configuration import ReplaySettings, cache_config
from hicache.testing.replay.limits import limits
from hicache.testing.replay.outcome import SCHEMA_VERSION, HostOutcome, ReplayOutcome
from hicache.testing.replay.passage import Passage
from hicache.testing.replay.survey import survey
from hicache.testing.traces import Trace
from hicache.types import Pool

Progress = Callable[[int, int], None]
"""Called after each request with how many were replayed, and how many there are."""


def replay(
    trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings, progress: Progress | None
) -> ReplayOutcome:
    """Drive a new cache with a trace. A broken law ends the replay, and stands in the outcome's `broken`.

    Streams the file five times, and once more with a host tier; memory is that of the cache, and some bytes for each
    block of the trace. Raises TraceError on a malformed line or an empty trace, and ConfigurationError when the
    settings can't be served.
    """
    begin = perf_counter()
    totals = survey(trace, settings.page_size)
    if not totals.requests:
        raise TraceError(f"{trace.path}: there is no request to replay")
    config = cache_config(settings, totals)
    _require_served(config, adapter)
    with closing(adapter(config)) as cache:
        passage = Passage(cache, config, settings)
        broken = _broken(passage, lambda: _drive(passage, trace, totals.requests, progress))
        # What the last check moves is not the trace's.
        host = _host_outcome(cache, config)
        broken = broken or _broken(passage, passage.check_drained)
    tally, reached = passage.tally, limits(trace, config)
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
        hit_tokens=dict(tally.hit_tokens),
        hit_rate=_share(sum(tally.hit_tokens.values()), tally.input_tokens),
        hit_rates={tier: _share(tokens, tally.input_tokens) for tier, tokens in tally.hit_tokens.items()},
        lru_hit_rate=_share(reached.lru_tokens, totals.input_tokens),
        device_lru_hit_rate=_share(reached.device_lru_tokens, totals.input_tokens),
        optimal_hit_rate=_share(reached.optimal_tokens, totals.input_tokens),
        evicted_tokens=tally.evicted_tokens,
        latency=passage.stopwatch.summaries(),
        checks=passage.audit.checks,
        broken=broken,
        seconds=round(perf_counter() - begin, 3),
        peak_rss_bytes=_peak_rss_bytes(),
        timeline=tuple(tally.timeline.windows),
        host=host,
    )


def _drive(passage: Passage, trace: Trace, requests: int, progress: Progress | None) -> None:
    for number, request in enumerate(trace, start=1):
        passage.serve(request)
        if progress is not None:
            progress(number, requests)
    passage.end()


def _broken(passage: Passage, act: Callable[[], None]) -> str | None:
    """The message of the law that an act was found to break, or None."""
    try:
        act()
    except InvariantError as error:
        return f"after {passage.tally.requests} requests: {error}"
    return None


def _require_served(config: CacheConfig, adapter: type[CacheAdapter]) -> None:
    """Raise ConfigurationError for what this machine or this adapter does not have."""
    if reason := missing_device(config.device):
        raise ConfigurationError(reason)
    if config.host is None:
        return
    is_stepped = config.host.executor is ExecutorKind.STEPPED
    for need in (Capability.HOST, *((Capability.STEPPED,) if is_stepped else ())):
        if need not in adapter.capabilities:
            raise ConfigurationError(f"host {config.host.name}: {adapter.__qualname__} does not declare {need.name}")


def _host_outcome(cache: CacheAdapter, config: CacheConfig) -> HostOutcome | None:
    if config.host is None:
        return None
    counters = cache.counters() if Capability.COUNTERS in cache.capabilities else {}
    return HostOutcome(
        capacity_tokens=dict(config.host.capacity_tokens),
        bytes_backed_up=counters.get("bytes_backed_up"),
        bytes_loaded=counters.get("bytes_loaded"),
        backups_refused=counters.get("backups_refused"),
        bytes_per_token=_bytes_per_token(cache) if Capability.BYTES in cache.capabilities else None,
    )


def _bytes_per_token(cache: CacheAdapter) -> int:
    layers = {pool: cache.layers(pool) for pool in (Pool.KV, Pool.INDEXER)}
    return sum(count * cache.slot_bytes(pool) for pool, count in layers.items() if count)


def _share(tokens: int, of: int) -> float:
    return tokens / of if of else 0.0


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
