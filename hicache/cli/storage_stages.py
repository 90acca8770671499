"""The stages of `hicache verify-storage` besides the suites: fault runs, kills, throughput; in this process."""

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
from hicache.testing.storage.kills import KillRuns
from hicache.testing.storage.subject import BackendSubject
from hicache.testing.storage.throughput import PAGE_SIZES, Throughput, measure

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - folders with random names are made in it


@dataclass(frozen=True, slots=True)
class StorageVerification:
    """What is to be verified. `title`: all subjects, in words. `options`: of the command, to name them again.

    `seed`: of the first fault run and the first kill. `folder`: where the backends keep what they keep.
    """

    subjects: tuple[BackendSubject, ...]
    title: str
    options: tuple[str, ...]
    seed: int
    folder: Path | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What came of one subject: what was done, in words; why it was skipped or what is wrong, or nothing."""

    outcome: Outcome
    reason: str
    told: str
    operations: int
    seed: int


@dataclass(frozen=True, slots=True)
class SeededStage:
    """So many seeded runs on each backend. `look`: runs one backend, from the seed on, telling its progress."""

    name: str
    option: str
    runs: int
    clauses: tuple[str, ...]
    verification: StorageVerification
    look: Callable[[BackendSubject, Path, range, Progress], Finding]

    def run(self, progress: Progress) -> StageResult:
        """All runs on each backend, or up to its first failure."""
        begin, subjects = perf_counter(), self.verification.subjects
        executions, environment = [], {}
        for number, subject in enumerate(subjects):
            started = perf_counter()
            finding = self._look(subject, _part(progress, number, len(subjects)))
            executions.append(self._execution(subject, finding, perf_counter() - started))
            environment[f"{self.name} of {subject.name}"] = finding.told
        record = record_of(self.verification.title, environment, executions)
        return StageResult(self.name, record, None, perf_counter() - begin)

    def _look(self, subject: BackendSubject, progress: Progress) -> Finding:
        seeds = range(self.verification.seed, self.verification.seed + self.runs)
        with tempfile.TemporaryDirectory(dir=self._parent(), prefix="hicache-") as folder:
            try:
                return self.look(subject, Path(folder), seeds, progress)
            except Exception:  # noqa: BLE001 - whatever a backend raises is a finding, not the end of the report
                return Finding(Outcome.FAILED, traceback.format_exc(), "ended by an exception", 0, seeds.start)

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
    """Fault runs on one backend."""
    counts, outcome, reason, seed = NO_RUNS, Outcome.PASSED, "", seeds.start
    for seed in seeds:
        try:
            counts += fault_run(subject, folder, seed)
        except InvariantError as error:
            outcome, reason = Outcome.FAILED, str(error)
            break
        progress(counts.runs, len(seeds))
    told = (
        f"{counts.runs:,} runs with seeds from {seeds.start}: {counts.operations:,} verbs, {counts.faults:,} faults, "
        f"{counts.hits:,} pages read, {counts.misses:,} misses"
    )
    return Finding(outcome, reason, told, counts.operations, seed)


def run_kills(subject: BackendSubject, folder: Path, seeds: range, progress: Progress) -> Finding:
    """Kills of writers to one backend, until as many as there are seeds were in time."""
    with closing(KillRuns(subject, folder)) as runs:
        if not runs.reach_others:
            reason = f"what one process keeps in {subject.name}, no other can see: a kill leaves nothing to look at"
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
        told = (
            f"{counts.kills:,} writers killed, seeds from {seeds.start}: {counts.acknowledged:,} pages acknowledged, "
            f"and read; of those under way {counts.whole:,} whole and {counts.absent:,} absent"
        )
        return Finding(outcome, reason, told, runs.operations, seed)


@dataclass(frozen=True, slots=True)
class ThroughputStage:
    """Sets and gets of large pages on each backend. It finds nothing right or wrong, so it executes no test."""

    verification: StorageVerification

    @property
    def name(self) -> str:
        """The word for tables and progress bars."""
        return "throughput"

    def run(self, progress: Progress) -> StageResult:
        """Measure each size of page on each backend."""
        begin, environment, problem = perf_counter(), {}, None
        wanted = [(subject, size) for subject in self.verification.subjects for size in PAGE_SIZES]
        for number, (subject, size) in enumerate(wanted):
            with tempfile.TemporaryDirectory(dir=self.verification.folder, prefix="hicache-") as folder:
                try:
                    told = _in_words(measure(subject, Path(folder), size))
                except Exception as error:  # noqa: BLE001 - whatever a backend raises is a finding
                    told = problem = f"{subject.name}, pages of {size >> 10} KiB: {error!r}"
            environment[f"throughput of {subject.name}, {size >> 10} KiB"] = told
            progress(number + 1, len(wanted))
        record = record_of(self.verification.title, environment, [])
        return StageResult(self.name, record, problem, perf_counter() - begin)


def record_of(title: str, environment: Mapping[str, str], executions: Sequence[Execution]) -> RunRecord:
    """A run of a stage that has just ended."""
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
