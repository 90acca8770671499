"""replay(): a whole trace through a new cache, with its totals, its limits, and the laws checked on the way."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from time import perf_counter

from hicache.errors import InvariantError, TraceError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.replay.configuration import ReplaySettings, cache_config
from hicache.testing.replay.lru import lru_hit_tokens
from hicache.testing.replay.optimum import optimal_hit_tokens
from hicache.testing.replay.outcome import SCHEMA_VERSION, ReplayOutcome
from hicache.testing.replay.passage import Passage
from hicache.testing.replay.survey import survey
from hicache.testing.traces import Trace
from hicache.types import Component

Progress = Callable[[int, int], None]
"""Called after each request with how many were replayed, and how many there are."""


def replay(
    trace: Trace, adapter: type[CacheAdapter], settings: ReplaySettings, progress: Progress | None
) -> ReplayOutcome:
    """Drive a new cache with a trace. A broken law ends the replay, and stands in the outcome's `broken`.

    Streams the file five times; memory is that of the cache, and some bytes for each block of the trace.
    Raises TraceError on a malformed line or an empty trace, and ConfigurationError when the settings can't be served.
    """
    begin = perf_counter()
    totals = survey(trace, settings.page_size)
    if not totals.requests:
        raise TraceError(f"{trace.path}: there is no request to replay")
    config = cache_config(settings, totals)
    cache = adapter(config)
    try:
        passage = Passage(cache, config, settings)
        broken = _drive(passage, trace, totals.requests, progress)
    finally:
        cache.close()
    capacity_tokens = config.capacity_tokens[Component.FULL]
    tally = passage.tally
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
        hit_rate=_share(tally.hit_tokens.total(), tally.input_tokens),
        lru_hit_rate=_share(lru_hit_tokens(trace, settings.page_size, capacity_tokens), totals.input_tokens),
        optimal_hit_rate=_share(optimal_hit_tokens(trace, settings.page_size, capacity_tokens), totals.input_tokens),
        evicted_tokens=tally.evicted_tokens,
        latency=passage.stopwatch.summaries(),
        checks=passage.audit.checks,
        broken=broken,
        seconds=round(perf_counter() - begin, 3),
        peak_rss_bytes=_peak_rss_bytes(),
        timeline=tuple(tally.timeline.windows),
    )


def _drive(passage: Passage, trace: Trace, requests: int, progress: Progress | None) -> str | None:
    """Replay to the end. Returns the message of the law that was broken, or None."""
    try:
        for number, request in enumerate(trace, start=1):
            passage.serve(request)
            if progress is not None:
                progress(number, requests)
        passage.end()
    except InvariantError as error:
        return f"after {passage.tally.requests} requests: {error}"
    return None


def _share(tokens: int, of: int) -> float:
    return tokens / of if of else 0.0


def _peak_rss_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
