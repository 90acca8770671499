"""The stages of `hicache verify-storage` that run in this process: fault runs, kills and throughput."""

from __future__ import annotations

import shlex
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from time import perf_counter

from hicache.cli.stage import Progress, StageResult
from hicache.errors import InvariantError
from hicache.testing.report import SCHEMA_VERSION, Execution, Outcome, RunRecord
from hicache.testing.storage.fault_runs import NO_RUNS, fault_run
from hicache.testing.storage.subject import BackendSubject
from hicache.testing.storage.throughput import PAGE_SIZES, Throughput, measure
from hicache.testing.storage.writers import KillRuns

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - only folders with random names are made in it


@dataclass(frozen=True, slots=True)
class StorageVerification:
    """What to verify. `title`: the names of all subjects. `options`: --backend and --config of the command.

    `seed`: of the first fault run and of the first kill. `folder`: for the files of the backends, or None.
    """

    subjects: tuple[BackendSubject, ...]
    title: str
    options: tuple[str, ...]
    seed: int
    folder: Path | None


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of the runs on one subject.

    `reason`: why it was skipped or failed, or empty. `summary`: what was done, in words. `seed`: of the last run.
    """

    outcome: Outcome
    reason: str
    summary: str
    operations: int
    seed: int


@dataclass(frozen=True, slots=True)
class SeededStage:
    """`runs` seeded runs on each backend. `run_one`: runs one backend with a range of seeds, and reports progress."""

    name: str
    option: str
    runs: int
    clauses: tuple[str, ...]
    verification: StorageVerification
    run_one: Callable[[BackendSubject, Path, range, Progress], Finding]

    def run(self, progress: Progress) -> StageResult:
        """Run each backend to the end, or up to its first failure."""
        begin, subjects = perf_counter(), self.verification.subjects
        executions, environment = [], {}
        for number, subject in enumerate(subjects):
            started = perf_counter()
            finding = self._finding(subject, _part(progress, number, len(subjects)))
            executions.append(self._execution(subject, finding, perf_counter() - started))
            environment[f"{self.name} of {subject.name}"] = finding.summary
        record = record_of(self.verification.title, environment, executions)
        return StageResult(self.name, record, None, perf_counter() - begin)

    def _finding(self, subject: BackendSubject, progress: Progress) -> Finding:
        seeds = range(self.verification.seed, self.verification.seed + self.runs)
        with tempfile.TemporaryDirectory(dir=self._parent(), prefix="hicache-") as folder:
            try:
                return self.run_one(subject, Path(folder), seeds, progress)
            except Exception:  # noqa: BLE001 - an exception of a backend is a finding and must not end the report
                return Finding(Outcome.FAILED, traceback.format_exc(), "stopped by an exception", 0, seeds.start)

    def _parent(self) -> Path | None:
        if self.verification.folder is None and self.name == "faults" and MEMORY_FOLDER.is_dir():
            return MEMORY_FOLDER
        return self.verification.folder

    def _execution(self, subject: BackendSubject, finding: Finding, duration_s: float) -> Execution:
        again = ["hicache", "verify-storage", *self.verification.options, "--seed", str(finding.seed)]
        return Execution(
            node_id=f"storage::{self.runs:,} {self.name}[{subject.name}]",
            suite=self.name,
            clauses=self.clauses,
            configuration=f"storage/{subject.name}",
            outcome=finding.outcome,
            reason=finding.reason,
            replay=shlex.join([*again, f"--{self.option}", "1", "--only", self.name]),
            duration_s=duration_s,
            operations=finding.operations,
        )


def run_faults(subject: BackendSubject, folder: Path, seeds: range, progress: Progress) -> Finding:
    """Run one fault run for each seed on one backend, up to the first failure."""
    counts, outcome, reason, seed = NO_RUNS, Outcome.PASSED, "", seeds.start
    for seed in seeds:
        try:
            counts += fault_run(subject, folder, seed)
        except InvariantError as error:
            outcome, reason = Outcome.FAILED, str(error)
            break
        progress(counts.runs, len(seeds))
    summary = (
        f"{counts.runs:,} runs with seeds from {seeds.start}: {counts.operations:,} calls, {counts.faults:,} faults, "
        f"{counts.hits:,} pages read, {counts.misses:,} misses"
    )
    return Finding(outcome, reason, summary, counts.operations, seed)


def run_kills(subject: BackendSubject, folder: Path, seeds: range, progress: Progress) -> Finding:
    """Kill writers of one backend until as many kills as seeds came before the writer had finished."""
    with closing(KillRuns(subject, folder)) as runs:
        if not runs.reach_others:
            reason = (
                f"the data of {subject.name} is visible only in its own process: after a kill nothing can be checked"
            )
            return Finding(Outcome.SKIPPED, reason, f"none: {reason}", runs.operations, seeds.start)
        outcome, reason, seed = Outcome.PASSED, "", seeds.start
        while runs.counts.kills < len(seeds) and not reason:
            try:
                runs.run(seed)
            except InvariantError as error:
                outcome, reason = Outcome.FAILED, f"kill with seed {seed}: {error}"
                break
            progress(runs.counts.kills, len(seeds))
            seed += 1
        counts = runs.counts
        summary = (
            f"{counts.kills:,} writers killed, seeds from {seeds.start}: {counts.acknowledged:,} acknowledged pages "
            f"were read; of the pages in flight {counts.whole:,} were complete and {counts.absent:,} absent"
        )
        return Finding(outcome, reason, summary, runs.operations, seed)


@dataclass(frozen=True, slots=True)
class ThroughputStage:
    """Measures set and get of large pages on each backend. It checks nothing, so it executes no test."""

    verification: StorageVerification

    @property
    def name(self) -> str:
        """The name in tables and progress bars."""
        return "throughput"

    def run(self, progress: Progress) -> StageResult:
        """Measure each page size on each backend."""
        begin, environment, problem = perf_counter(), {}, None
        wanted = [(subject, size) for subject in self.verification.subjects for size in PAGE_SIZES]
        for number, (subject, size) in enumerate(wanted):
            with tempfile.TemporaryDirectory(dir=self.verification.folder, prefix="hicache-") as folder:
                try:
                    summary = _in_words(measure(subject, Path(folder), size))
                except Exception as error:  # noqa: BLE001 - an exception of a backend is a finding
                    summary = problem = f"{subject.name}, pages of {size >> 10} KiB: {error!r}"
            environment[f"throughput of {subject.name}, {size >> 10} KiB"] = summary
            progress(number + 1, len(wanted))
        record = record_of(self.verification.title, environment, [])
        return StageResult(self.name, record, problem, perf_counter() - begin)


def record_of(title: str, environment: Mapping[str, str], executions: Sequence[Execution]) -> RunRecord:
    """The record of a stage that has just ended."""
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        implementation=title,
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        environment=environment,
        capabilities=(),
        executions=tuple(executions),
    )


def _part(progress: Progress, number: int, parts: int) -> Progress:
    """Progress of one of several parts of equal length."""
    return lambda done, total: progress(number * total + done, parts * total)


def _in_words(found: Throughput) -> str:
    set_share, get_share = found.set_rate / found.pwritev_rate, found.get_rate / found.preadv_rate
    return (
        f"set {found.set_rate / 1e9:.2f} GB/s ({set_share:.2f} of pwritev), "
        f"get {found.get_rate / 1e9:.2f} GB/s ({get_share:.2f} of preadv)"
    )
