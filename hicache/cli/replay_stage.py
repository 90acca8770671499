"""ReplayStage: replays of a generated trace with each tier that the cache has. As a program it runs them."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from threading import Event
from time import perf_counter

from hicache.cli.command import adapter_class
from hicache.cli.program import program
from hicache.cli.stage import StageProgress, StageResult, Verification, part_of, record_of, run_process
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.plugin.failures import causes_of
from hicache.testing.plugin.known_failures import (
    Baseline,
    KnownFailure,
    judged,
    read_baseline,
    read_known_failures,
)
from hicache.testing.processes import end_if_forked
from hicache.testing.replay import ReplayOutcome, ReplaySettings, Sample, replay_sample, samples
from hicache.testing.replay.run import OpeningError
from hicache.testing.report import NO_EVIDENCE, Execution, Outcome, RunRecord, write_run


@dataclass(frozen=True, slots=True)
class ReplayStage:
    """The replays of `samples`, in a process of their own. Their pictures are written to the folder of the report."""

    verification: Verification

    @property
    def name(self) -> str:
        """The name in tables and progress bars."""
        return "replay"

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Start this module as a program, and read its `run.json`."""
        verification = self.verification
        # The report includes every replay*.svg of its folder, so those of an earlier replay are removed, and the pages.
        for old in (*verification.directory.glob("replay*.svg"), *verification.directory.glob("replay*.html")):
            old.unlink()
        lists = [str(path or "") for path in (verification.known_failures, verification.baseline)]
        command = program(__name__, verification.adapter, str(verification.directory), *lists)
        log = verification.directory / self.name / "replay.log"
        return run_process(self.name, command, log, progress, interrupt, verification)


@dataclass(frozen=True, slots=True)
class Replays:
    """The replays of `samples`. Each is one execution. `directory`: for the pictures."""

    path: str
    adapter: type[CacheAdapter]
    directory: Path
    known_failures: tuple[KnownFailure, ...]
    baseline: Baseline | None = None
    executions: list[Execution] = field(default_factory=list)
    started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))

    def run(self, progress: StageProgress) -> RunRecord:
        """Replay each sample to its end, or up to the first violated invariant."""
        chosen, process = samples(self.adapter), os.getpid()
        for number, sample in enumerate(chosen):
            execution = self._run(sample, part_of(progress, number, len(chosen)))
            end_if_forked(process)
            self.executions.append(execution)
        return self.record()

    def record(self) -> RunRecord:
        """The replays that have ended."""
        capabilities = sorted(capability.name for capability in self.adapter.capabilities)
        profile, started = self.adapter.profile, self.started
        return record_of(self.path, self.executions, started=started, profile=profile, capabilities=capabilities)

    def _run(self, sample: Sample, progress: StageProgress) -> Execution:
        begin = perf_counter()
        try:
            outcome = replay_sample(self.adapter, sample, self.directory, progress)
        except ConfigurationError as error:
            refused = self._execution(sample, (), "", "", (), perf_counter() - begin, 0)
            return replace(
                refused, outcome=Outcome.SKIPPED, causes=(), reason=f"{self.adapter.__name__} refuses it: {error}"
            )
        except Exception as error:  # noqa: BLE001 - an exception of the cache under test is a finding
            raised = error.__cause__ if isinstance(error, OpeningError) and error.__cause__ else error
            reason = f"{type(raised).__name__}: {raised}\n\n{traceback.format_exc()}"
            return self._execution(sample, (), "", reason, causes_of(raised, ()), perf_counter() - begin, 0)
        clauses = _clauses_checked(outcome, self.adapter)
        calls = sum(latency.calls for latency in outcome.latency.values())
        duration_s = perf_counter() - begin
        return self._execution(
            sample, clauses, outcome.configuration, outcome.broken or "", outcome.causes, duration_s, calls
        )

    def _execution(
        self,
        sample: Sample,
        clauses: tuple[str, ...],
        configuration: str,
        reason: str,
        causes: tuple[str, ...],
        duration_s: float,
        operations: int,
    ) -> Execution:
        node_id = f"replay::{sample.title}"
        outcome, found, told = judged(self.known_failures, node_id, clauses, causes, reason)
        if outcome is Outcome.FAILED and reason and self.baseline is not None and self.baseline.has(node_id, causes):
            outcome, told = Outcome.KNOWN_FAILURE, f"{self.baseline.reason}\n{reason}"
        return Execution(
            node_id=node_id,
            suite="replay",
            clauses=clauses,
            configuration=configuration,
            outcome=outcome,
            causes=found,
            reason=told,
            lacks=(),
            evidence=NO_EVIDENCE,
            replay=self._command(sample.settings),
            duration_s=duration_s,
            operations=operations,
        )

    def _command(self, settings: ReplaySettings) -> str:
        """The command for the same replay, with a check of the whole cache after each request."""
        options: dict[str, object] = {
            "adapter": self.path,
            "components": ",".join(settings.components),
            "capacity": settings.capacity,
            "page-size": settings.page_size,
            "policy": settings.policy.value,
            "window": settings.sliding_window_size,
            "running": settings.running,
            "check-every": 1,
        }
        if (host := settings.host) is not None:
            options |= {
                "host": host.capacity,
                "write-policy": host.write_policy.value,
                "host-layout": host.layout.value,
                "executor": host.executor.value,
            }
        if (storage := settings.storage) is not None:
            options |= {
                "storage": storage.backend,
                "storage-config": storage.extra,
                "stop-policy": storage.stop_policy.value,
                "queue-steps": storage.queue_steps,
                "restart-at": storage.restart_at,
            }
        words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
        return shlex.join(["hicache", "replay", str(self.directory / "trace.jsonl"), *words])


def _clauses_checked(outcome: ReplayOutcome, adapter: type[CacheAdapter]) -> tuple[str, ...]:
    """The clauses that a replay checks, as far as the capabilities of the cache permit."""
    checked = ["REQ-4"]
    if outcome.checks:
        checked.append("POOL-1")
    if outcome.checks and Capability.BYTES in adapter.capabilities:
        checked.append("REQ-3")
    if outcome.host is not None:
        checked.append("FLOW-10")
    if outcome.host is not None and outcome.checks:
        checked.append("FLOW-7")
    if outcome.storage is not None and outcome.checks:
        checked += ["FETCH-8", "FLOW-9"]
    return tuple(checked)


def _print_share(done: int, total: int, failures: int = 0) -> None:  # noqa: ARG001 - the log has the shares
    print(f"[{100 * done // max(total, 1):3}%]", flush=True)  # noqa: T201


def main(adapter: str, directory: str, known_failures: str = "", baseline: str = "") -> None:
    """Replay the samples on an adapter, print the progress in percent, and write `replay/run.json`.

    An interrupted run writes what has ended, and ends as one that was interrupted.
    """
    known = read_known_failures(Path(known_failures)) if known_failures else ()
    cache = adapter_class(adapter)
    before = read_baseline(Path(baseline), adapter, cache.profile)[0] if baseline else None
    replays = Replays(adapter, cache, Path(directory), known, before)
    run_file = Path(directory) / "replay" / "run.json"
    try:
        write_run(replays.run(_print_share), run_file)
    except KeyboardInterrupt:
        if replays.executions:
            write_run(replays.record(), run_file)
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
