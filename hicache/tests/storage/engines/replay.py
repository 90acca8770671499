"""Replays a trace on engines that fail and go on later: `python -m hicache.tests.storage.engines.replay`."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, ClassVar

import typer

from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.storage.base import StorageBackend
from hicache.storage.wrappers import AuditedStorage
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.replay import HostSettings, ReplayOutcome, ReplaySettings, StorageSettings, replay
from hicache.testing.replay.configuration import NEVER
from hicache.testing.traces import SHIPPED_TRACE, Trace
from hicache.tests.storage.engines.__main__ import named
from hicache.tests.storage.engines.engine import EngineProcess
from hicache.tests.storage.engines.test_faults import KEYS, until
from hicache.tests.storage.engines.throughput import line
from hicache.types import StopPolicy, Tier

IN_FLIGHT = 10
"""The requests whose prefetches may have begun before the engine failed."""

KILLED_S, PAUSED_S = 60, 5
"""`timeout_s` of the backend. A killed engine refuses at once; for a paused one each attempt lasts as long."""

HEAD = (
    "engine",
    "requests",
    "from storage before",
    "while gone",
    "after",
    "pages compared",
    "longest verb",
    "broken law",
)


class Replayed(ReferenceAdapter):
    """The reference, which can wait until its backend has found an engine again. `newest`: the one opened last."""

    newest: ClassVar[Replayed]
    backend: AuditedStorage

    def _open_backend(self, scope: str) -> StorageBackend:
        Replayed.newest, backend = self, super()._open_backend(scope)
        assert isinstance(backend, AuditedStorage), "each page is compared with the one that was stored"
        self.backend = backend
        return backend

    def is_answered(self) -> bool:
        """Whether the engine answers the backend. During a pause it is not asked."""
        self.backend.has(KEYS[:1])
        breaker = self.backend.breaker()
        assert breaker is not None, "a backend on an engine has a breaker"
        return not breaker.is_open


@dataclass(frozen=True, slots=True)
class FaultedReplay:
    """A replay on an engine that failed. The tokens that came from storage `before`, while it was `gone`, and `after`.

    `audited`: the pages that were read and compared with those that were stored.
    """

    outcome: ReplayOutcome
    before: int
    gone: int
    after: int
    audited: int

    @property
    def longest_verb_s(self) -> float:
        """Of all verbs of the cache but `drain`, which waits for what is under way; in seconds."""
        return max(one.max_us for verb, one in self.outcome.latency.items() if verb != "drain") / 1e6


def replay_with_fault(process: EngineProcess, trace: Trace, page_size: int, *, kill: bool) -> FaultedReplay:
    """Kill or pause the engine after two fifths of the requests; it goes on after three fifths.

    Tiers are a tenth of what the trace needs.
    """
    requests = sum(1 for _ in trace)
    fails_at, back_at = requests * 2 // 5, requests * 3 // 5

    def come_back() -> None:
        # Without this wait, what began before could fail later, and the new pause last until the end of the trace.
        Replayed.newest.drain()
        (process.start if kill else process.resume)()
        until(Replayed.newest.is_answered, "the backend finds the engine again")

    acts: dict[int, Callable[[], None]] = {fails_at: process.kill if kill else process.pause, back_at: come_back}
    timeout_s = KILLED_S if kill else PAUSED_S
    settings = _settings(process, page_size, {"timeout_s": timeout_s, "retry_s": 0.01})
    outcome = replay(trace, Replayed, settings, lambda number, _: acts.get(number, lambda: None)())
    spans = (0, fails_at), (fails_at + IN_FLIGHT, back_at), (back_at, requests)
    before, gone, after = (_storage_hits(outcome, *span) for span in spans)
    return FaultedReplay(outcome, before, gone, after, Replayed.newest.backend.audited)


def _settings(process: EngineProcess, page_size: int, further: dict[str, float]) -> ReplaySettings:
    """Small tiers over storage that compares each page that it reads with the one that was stored."""
    # In a file, as options may be secret.
    config = process.settings.folder / "options.json"
    options = {"inner": process.engine.backend, "inner_options": process.options | further}
    config.write_text(json.dumps(options), encoding="utf-8")
    return ReplaySettings(
        page_size=page_size,
        capacity="10%",
        components=("full",),
        policy=EvictionPolicy.LRU,
        sliding_window_size=4096,
        running=4,
        check_every=50,
        host=HostSettings("10%", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.THREADED),
        storage=StorageSettings("audited", f"@{config}", StopPolicy.WAIT_COMPLETE, 4, NEVER),
    )


def _storage_hits(outcome: ReplayOutcome, begin: int, end: int) -> int:
    """The tokens that came from storage, of the windows of the timeline that lie between two numbers of requests."""
    ends = list(accumulate(window.requests for window in outcome.timeline))
    spans = zip(outcome.timeline, [0, *ends], ends, strict=False)
    return sum(window.hit_tokens[Tier.STORAGE] for window, first, last in spans if begin <= first and last <= end)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Engines. All, if none is named.", metavar="ENGINE")] = None,
    trace: Annotated[Path, typer.Option(help="A trace of Mooncake's format.")] = SHIPPED_TRACE,
    requests: Annotated[int | None, typer.Option(help="How many of its requests.")] = None,
    page_size: Annotated[int, typer.Option(help="Tokens of a page.")] = 64,
    kill: Annotated[bool, typer.Option("--kill/--pause", help="What happens to the engine.")] = True,
) -> None:
    """Print a table: tokens from storage before the engine fails, while it is gone and after it is back.

    Exit code 1: a law is broken, or no tokens came after it was back.
    """
    is_sound = True
    typer.echo(line(HEAD) + "\n" + line(["---"] * len(HEAD)))
    for engine in named(names):
        if engine.missing:
            typer.echo(f"{engine.name}: skipped, {engine.missing}", err=True)
            continue
        with (
            TemporaryDirectory(prefix="hicache-engine-") as folder,
            closing(EngineProcess(engine, Path(folder))) as one,
        ):
            found = replay_with_fault(one, Trace(trace, skip_bad=False, limit=requests), page_size, kill=kill)
        counts = (found.outcome.requests, found.before, found.gone, found.after, found.audited)
        verb, broken = f"{found.longest_verb_s * 1e3:.0f} ms", found.outcome.broken
        typer.echo(line([engine.name, *(f"{count:,}" for count in counts), verb, broken or "none"]))
        is_sound = is_sound and broken is None and found.after > 0
    raise typer.Exit(int(not is_sound))


if __name__ == "__main__":
    typer.run(main)
