"""A replay of a trace on an engine that is killed or paused in the middle, and goes on later."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hicache.config import EvictionPolicy, ExecutorKind, Layout, WritePolicy
from hicache.storage.base import StorageBackend
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.replay import HostSettings, ReplayOutcome, ReplaySettings, StorageSettings, replay
from hicache.testing.replay.configuration import NEVER
from hicache.testing.traces import SHIPPED_TRACE, Trace
from hicache.types import StopPolicy, Tier

from .conftest import Start
from .test_faults import KEYS, until

GONE, BACK = 60, 110
"""After how many of the 200 requests the engine fails, and goes on."""

IN_FLIGHT = 10
"""The requests whose prefetches may have begun before the engine failed."""


class Replayed(ReferenceAdapter):
    """The reference, which can wait until its backend has found an engine again. `newest`: the one opened last."""

    newest: ClassVar[Replayed]

    def _open_backend(self, scope: str) -> StorageBackend:
        Replayed.newest = self
        self.backend = super()._open_backend(scope)
        return self.backend

    def is_answered(self) -> bool:
        """Whether the engine answers the backend. During a pause it is not asked."""
        self.backend.has(KEYS[:1])
        breaker = self.backend.breaker()
        assert breaker is not None, "a backend on an engine has a breaker"
        return not breaker.is_open


def settings(backend: str, options: dict[str, Any], config: Path) -> ReplaySettings:
    """Small tiers over storage that compares each page that it reads with the one that was stored.

    `config`: a new file, as options may be secret.
    """
    config.write_text(json.dumps({"inner": backend, "inner_options": options}), encoding="utf-8")
    return ReplaySettings(
        page_size=64,
        capacity="10%",
        components=("full",),
        policy=EvictionPolicy.LRU,
        sliding_window_size=4096,
        running=4,
        check_every=50,
        host=HostSettings("10%", WritePolicy.WRITE_THROUGH, Layout.PAGE_FIRST, ExecutorKind.THREADED),
        storage=StorageSettings("audited", f"@{config}", StopPolicy.WAIT_COMPLETE, 4, NEVER),
    )


def storage_hits(outcome: ReplayOutcome, begin: int, end: int) -> int:
    """The tokens that came from storage, of the windows of the timeline that lie between two numbers of requests."""
    ends = list(accumulate(window.requests for window in outcome.timeline))
    spans = zip(outcome.timeline, [0, *ends], ends, strict=False)
    return sum(window.hit_tokens[Tier.STORAGE] for window, first, last in spans if begin <= first and last <= end)


@pytest.mark.parametrize(
    ("fails", "goes_on", "timeout_s"), [("kill", "start", 60), ("pause", "resume", 5)], ids=["killed", "paused"]
)
def test_a_replay_goes_on_without_an_engine_and_hits_again_when_it_is_back(
    start: Start, tmp_path: Path, fails: str, goes_on: str, timeout_s: int
) -> None:
    process = start()

    def come_back() -> None:
        # Without this wait, what began before could fail later, and the new pause last until the end of the trace.
        Replayed.newest.drain()
        getattr(process, goes_on)()
        until(Replayed.newest.is_answered, "the backend finds the engine again")

    acts = {GONE: getattr(process, fails), BACK: come_back}
    options = {**process.options, "timeout_s": timeout_s, "retry_s": 0.01}
    outcome = replay(
        Trace(SHIPPED_TRACE, skip_bad=False, limit=None),
        Replayed,
        settings(process.engine.backend, options, tmp_path / "options.json"),
        lambda number, _: acts.get(number, lambda: None)(),
    )
    assert outcome.broken is None, f"FLOW-9: no law is violated, got {outcome.broken}"
    hits = [storage_hits(outcome, *span) for span in ((0, GONE), (GONE + IN_FLIGHT, BACK), (BACK, outcome.requests))]
    assert outcome.storage is not None, "the replay has a storage tier"
    errors = [part.counters["storage_errors"] for part in outcome.storage.parts]
    assert not any(errors), f"STORE-3: the backend answers, and each byte is the one that was stored, got {errors}"
    assert hits[0] > 0, "there are hits before the engine fails"
    assert hits[1] == 0, f"there are none while it is gone, got {hits[1]} tokens"
    assert hits[2] > 0, "there are hits when it is back"
