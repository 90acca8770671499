"""A short replay of a generated trace, for `hicache verify`: as much of a cache as it declares, in a few seconds."""

from __future__ import annotations

from pathlib import Path

from hicache.config import EvictionPolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.replay.configuration import ReplaySettings
from hicache.testing.replay.outcome import ReplayOutcome
from hicache.testing.replay.report import write_report
from hicache.testing.replay.run import Progress, replay
from hicache.testing.traces import SHORT_TRACE, Trace, generate_trace, write_trace
from hicache.types import Component, Pool

_NEEDS = {
    Component.SWA.value: Capability.SWA,
    Component.MAMBA.value: Capability.MAMBA,
    Pool.INDEXER.value: Capability.INDEXER,
}
_CHECKS = 10
_SEED = 20


def sample_settings(adapter: type[CacheAdapter]) -> ReplaySettings:
    """All components that the adapter declares, in a quarter of the trace's footprint, so that there is eviction."""
    return ReplaySettings(
        page_size=64 if Capability.PAGED in adapter.capabilities else 1,
        capacity="25%",
        components=(Component.FULL.value, *(name for name, need in _NEEDS.items() if need in adapter.capabilities)),
        policy=EvictionPolicy.LRU,
        sliding_window_size=1024,
        running=8,
        check_every=SHORT_TRACE.requests // _CHECKS,
    )


def replay_sample(adapter: type[CacheAdapter], directory: Path, progress: Progress | None) -> ReplayOutcome:
    """Generate `trace.jsonl` into a directory, replay it with `sample_settings`, and report there.

    Raises what `replay` raises.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "trace.jsonl"
    write_trace(path, generate_trace(SHORT_TRACE, _SEED))
    outcome = replay(Trace(path, skip_bad=False, limit=None), adapter, sample_settings(adapter), progress)
    write_report(outcome, directory)
    return outcome
