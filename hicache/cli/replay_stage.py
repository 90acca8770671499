"""ReplayStage: a generated trace, replayed in this process."""

from __future__ import annotations

import re
import shlex
import traceback
from dataclasses import dataclass
from datetime import datetime, timezone
from time import perf_counter

from hicache.cli.stage import Progress, StageResult, Verification
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.known_failures import KnownFailure
from hicache.testing.replay import ReplayOutcome, replay_sample, sample_settings
from hicache.testing.report import SCHEMA_VERSION, Execution, Outcome, RunRecord

_NODE_ID = "replay::generated trace"


@dataclass(frozen=True, slots=True)
class ReplayStage:
    """The replay of `replay_sample`, told as one execution. Its picture lies beside the report, which shows it."""

    verification: Verification
    adapter: type[CacheAdapter]
    known_failures: tuple[KnownFailure, ...]

    @property
    def name(self) -> str:
        """The word for tables and progress bars."""
        return "replay"

    def run(self, progress: Progress) -> StageResult:
        """Replay to the end, or to the first broken law."""
        begin = perf_counter()
        # The report shows what lies beside it, which must not be an earlier replay.
        (self.verification.directory / "replay.svg").unlink(missing_ok=True)
        started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        try:
            outcome = replay_sample(self.adapter, self.verification.directory, progress)
        except Exception:  # noqa: BLE001 - whatever a cache under test raises is a finding, not the end of the report
            execution = self._execution((), "", traceback.format_exc(), perf_counter() - begin, 0)
        else:
            execution = self._told(outcome, perf_counter() - begin)
        record = RunRecord(
            schema_version=SCHEMA_VERSION,
            implementation=self.verification.adapter,
            started=started,
            environment={},
            capabilities=tuple(sorted(capability.name for capability in self.adapter.capabilities)),
            executions=(execution,),
        )
        return StageResult(self.name, record, None, perf_counter() - begin)

    def _told(self, outcome: ReplayOutcome, duration_s: float) -> Execution:
        clauses = _clauses_checked(outcome, self.adapter) if outcome.broken is None else _clauses_named(outcome.broken)
        calls = sum(latency.calls for latency in outcome.latency.values())
        return self._execution(clauses, outcome.configuration, outcome.broken or "", duration_s, calls)

    def _execution(
        self, clauses: tuple[str, ...], configuration: str, reason: str, duration_s: float, operations: int
    ) -> Execution:
        known = next((failure for failure in self.known_failures if failure.covers(_NODE_ID, clauses)), None)
        if reason and known is not None:
            outcome, reason = Outcome.KNOWN_FAILURE, str(known)
        else:
            outcome = Outcome.FAILED if reason else Outcome.PASSED
        return Execution(
            node_id=_NODE_ID,
            suite=self.name,
            clauses=clauses,
            configuration=configuration,
            outcome=outcome,
            reason=reason,
            replay=self._command(),
            duration_s=duration_s,
            operations=operations,
        )

    def _command(self) -> str:
        """The same replay, with the whole cache checked after each request."""
        settings = sample_settings(self.adapter)
        options = {
            "adapter": self.verification.adapter,
            "components": ",".join(settings.components),
            "capacity": settings.capacity,
            "page-size": settings.page_size,
            "policy": settings.policy.value,
            "window": settings.sliding_window_size,
            "running": settings.running,
            "check-every": 1,
        }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return shlex.join(["hicache", "replay", str(self.verification.directory / "trace.jsonl"), *words])


def _clauses_checked(outcome: ReplayOutcome, adapter: type[CacheAdapter]) -> tuple[str, ...]:
    """What a replay looks at from request to request, as far as the cache lets it."""
    checked = ["REQ-4"]
    if outcome.checks:
        checked.append("POOL-1")
    if outcome.checks and Capability.BYTES in adapter.capabilities:
        checked.append("REQ-3")
    return tuple(checked)


def _clauses_named(message: str) -> tuple[str, ...]:
    """The clause that a broken law names."""
    return tuple(dict.fromkeys(found for found in re.findall(r"[A-Z]+-\d+", message) if found in CONTRACT))
