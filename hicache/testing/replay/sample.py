"""Short replays of a generated trace, for `hicache verify`: every tier that a cache declares, in a few seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.configurations import OF_NAME
from hicache.testing.replay.configuration import HostSettings, ReplaySettings, StorageSettings, lacks_for_replay
from hicache.testing.replay.outcome import ReplayOutcome
from hicache.testing.replay.report import write_report
from hicache.testing.replay.run import Progress, replay
from hicache.testing.storage.scripted import BACKEND as SCRIPTED
from hicache.testing.traces import BLOCK_TOKENS, SHORT_TRACE, Trace, generate_trace, write_trace
from hicache.types import Component, StopPolicy

_CHECKS = 10
_SEED = 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One replay of the generated trace. `name`: of its files. `title`: a description for people."""

    name: str
    title: str
    settings: ReplaySettings


def _others(adapter: type[CacheAdapter]) -> tuple[str, ...]:
    """The components beside FULL, and the indexer: a replay has no other sidecar."""
    needs = {name: need for name, need in OF_NAME.items() if need not in (Capability.SIDECARS, Capability.GROUPS)}
    return tuple(name for name, need in needs.items() if need in adapter.capabilities)


def samples(adapter: type[CacheAdapter]) -> list[Sample]:
    """A replay for each tier of the adapter, with all its components, and a capacity that causes evictions.

    None for an adapter that a replay cannot drive.
    """
    if lacks_for_replay(adapter.profile, adapter.capabilities):
        return []
    device = ReplaySettings(
        page_size=64 if Capability.PAGED in adapter.capabilities else 1,
        capacity="25%",
        components=(Component.FULL.value, *_others(adapter)),
        policy=EvictionPolicy.LRU,
        sliding_window_size=1024,
        running=8,
        check_every=SHORT_TRACE.requests // _CHECKS,
        host=None,
        storage=None,
    )
    found = [Sample("replay", "generated trace", device)]
    if Capability.HOST in adapter.capabilities:
        # With stepped transfers a replay is reproducible.
        is_stepped = Capability.STEPPED in adapter.capabilities
        executor = ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED
        host = HostSettings("25%", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, executor)
        # A conversation continues after whole blocks. With pages of a block, a state at that position can be used.
        page_size = BLOCK_TOKENS if Capability.PAGED in adapter.capabilities else 1
        both = replace(device, page_size=page_size, capacity="5%", host=host)
        found.append(Sample("replay-host", "generated trace, device and host", both))
        if Capability.STORAGE in adapter.capabilities:
            storage = StorageSettings(SCRIPTED, '{"prefetch_threshold": 0}', StopPolicy.WAIT_COMPLETE, 2, 0.5)
            three = replace(both, storage=storage)
            found.append(Sample("replay-storage", "generated trace, three tiers and a restart", three))
    return found


def replay_sample(
    adapter: type[CacheAdapter], sample: Sample, directory: Path, progress: Progress | None
) -> ReplayOutcome:
    """Generate `trace.jsonl` into a directory, replay it with the sample's settings, and write the report there.

    Raises the errors of `replay`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "trace.jsonl"
    write_trace(path, generate_trace(SHORT_TRACE, _SEED))
    outcome = replay(Trace(path, skip_bad=False, limit=None), adapter, sample.settings, progress)
    write_report(outcome, directory, sample.name)
    return outcome
