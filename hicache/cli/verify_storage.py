"""`hicache verify-storage`: the storage suites, fault runs, kill runs and throughput of a backend, in one report."""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console

from hicache.cli.command import REFERENCE, include_this_folder, known_names, option, say, writable_folder
from hicache.cli.stage import (
    MEASURES,
    Stage,
    StageProgress,
    StageResult,
    SuiteStage,
    Verification,
    failed_stages,
    part_of,
    record_of,
)
from hicache.cli.verify import listed_failures
from hicache.errors import InvariantError
from hicache.storage.registry import backend_class
from hicache.testing.plugin.failures import causes_of
from hicache.testing.plugin.known_failures import KnownFailure, judged
from hicache.testing.plugin.options import BACKEND, BACKEND_CONFIG
from hicache.testing.report import NO_EVIDENCE, Execution, Outcome
from hicache.testing.report.targets import FILES
from hicache.testing.storage.fault_runs import NO_RUNS, fault_run
from hicache.testing.storage.subject import SHIPPED, BackendSubject, read_subject, require_opened
from hicache.testing.storage.throughput import PAGE_SIZES, Throughput, measure
from hicache.testing.storage.writers import KillRuns

STAGES = ("conformance", "properties", "faults", "kills", "throughput")

MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108 - only folders with random names are made in it

_BackendName = Annotated[
    str | None,
    typer.Option(
        help="Registered name, entry point or package.module:Class. Without it: all backends of this package."
    ),
]
_BackendOptions = Annotated[
    str | None,
    typer.Option(
        help="Options of --backend: JSON, or @file (JSON, TOML, YAML). '{directory}' in a value is a new folder."
    ),
]
_Kills = Annotated[int, typer.Option(min=1, help="Writer processes to kill, for each backend.")]
_FaultRuns = Annotated[
    int, typer.Option(min=1, help="Random operation sequences with injected faults, for each backend.")
]
_Seed = Annotated[int, typer.Option(min=0, help="Seed of the first kill and of the first fault run.")]
_Only = Annotated[
    list[str] | None, typer.Option(help=f"Run only this stage; may be repeated. One of {', '.join(STAGES)}.")
]
_Folder = Annotated[
    Path | None,
    typer.Option(
        exists=True, file_okay=False, help="Folder for files. Default: /dev/shm for fault runs, else temporary."
    ),
]
_Report = Annotated[Path, typer.Option(file_okay=False, help="Folder for report and logs.")]
_KnownFailures = Annotated[
    Path | None,
    typer.Option(exists=True, dir_okay=False, help="TOML file that lists expected failures."),
]


def verify_storage_command(  # noqa: PLR0913, PLR0917 - one parameter is one option
    backend: _BackendName = None,
    config: _BackendOptions = None,
    kills: _Kills = 20,
    fault_runs: _FaultRuns = 500,
    seed: _Seed = 0,
    only: _Only = None,
    folder: _Folder = None,
    report: _Report = Path("reports"),
    known_failures: _KnownFailures = None,
) -> None:
    """Verify a storage backend, and measure its throughput. No cache is needed.

    The stages are:

    - conformance: the clauses that apply to a backend.
    - properties: random operations, compared with a model.
    - faults: random operations with injected faults, such as failing reads and writes, and short or torn pages.
    - kills: writer processes that are killed at a random moment.
    - throughput: set and get of large pages, in GB/s and as a share of pwritev and preadv.

    Exit code:

    - 0: no test failed, and at least one passed.
    - 1: a test or a stage failed, or no test passed. The stage throughput contains no test.
    - 2: the backend, its options, a list or a folder cannot be used, or a stage is unknown.
    """
    chosen = only or list(STAGES)
    known_names("--only", "stage", chosen, STAGES)
    known, subjects = listed_failures(known_failures), _subjects(backend, config)
    if folder is not None:
        writable_folder("--folder", folder)
    writable_folder("--report", report, FILES)
    words = [("--backend", backend), ("--config", config)]
    options = tuple(word for name, value in words if value is not None for word in (name, value))
    title = ", ".join(subject.name for subject in subjects)
    verification = StorageVerification(subjects, title, options, seed, folder, known)
    suites = Verification(REFERENCE, quick=False, directory=report, known_failures=known_failures)
    stages = [
        stage for stage in _stages(verification, suites, fault_runs, kills) if stage.name.partition("/")[0] in chosen
    ]
    console = Console(emoji=False)
    results = verify_storage(stages, title, report, console)
    failed = failed_stages(results)
    nothing = not any(result.count(Outcome.PASSED) for result in results)
    if failed or nothing:
        say(console, f"failed: {', '.join(failed) or 'no test passed'}", style="bold red")
        raise typer.Exit(1)
    say(console, "verified: no test failed", style="bold green")


def verify_storage(stages: Sequence[Stage], title: str, directory: Path, console: Console) -> list[StageResult]:
    """Run the stages one after the other, write one report of all of them, and show the results."""
    from hicache.cli.verify_view import run_with_progress, show_results, show_storage
    from hicache.testing.report import merge_runs, without_secrets, write_report
    from hicache.testing.storage.subject import BACKEND_CLAUSES

    directory.mkdir(parents=True, exist_ok=True)
    # A backend logs the faults that are injected here. These lines are expected and are not shown.
    logging.getLogger().addHandler(logging.NullHandler())
    results = run_with_progress(stages, console)
    # The suites record the reference cache as the implementation, but the run is about the backend.
    records = [replace(one.record, implementation=title, capabilities=()) for one in results if one.record is not None]
    page = None
    if records:
        record = without_secrets(merge_runs(records))
        page = write_report(record, directory, BACKEND_CLAUSES)
        show_storage(record, console)
    show_results(results, console)
    if page is not None:
        say(console, f"report: {page}")
    return results


def _subjects(backend: str | None, config: str | None) -> tuple[BackendSubject, ...]:
    include_this_folder()
    if backend is None and config is not None:
        raise typer.BadParameter("--config needs --backend: these are options of one backend", param_hint="--config")
    if backend is None:
        return SHIPPED
    with option("--backend"):
        backend_class(backend)
    with option("--backend, --config"):
        subject = read_subject(backend, config)
        require_opened(subject)
    return (subject,)


def _stages(verification: StorageVerification, suites: Verification, fault_runs: int, kills: int) -> list[Stage]:
    options, given = {"--backend": BACKEND, "--config": BACKEND_CONFIG}, verification.options
    named = tuple(
        word for name, value in zip(given[::2], given[1::2], strict=True) for word in options[name].words(value)
    )
    faulty, killed = ("STORE-3", "STORE-4", "STORE-5", "STORE-7"), ("STORE-3", "STORE-4")
    return [
        SuiteStage("conformance/storage", suites, named),
        SuiteStage("properties/storage", suites, ("--hypothesis-profile", "hicache-quick", *named)),
        SeededStage("faults", "fault-runs", fault_runs, faulty, verification, run_faults),
        SeededStage("kills", "kills", kills, killed, verification, run_kills),
        ThroughputStage(verification),
    ]


@dataclass(frozen=True, slots=True)
class StorageVerification:
    """What to verify. `title`: the names of all subjects. `options`: --backend and --config of the command.

    `seed`: of the first fault run and of the first kill. `folder`: for the files of the backends, or None.
    `known`: what is expected to fail.
    """

    subjects: tuple[BackendSubject, ...]
    title: str
    options: tuple[str, ...]
    seed: int
    folder: Path | None
    known: tuple[KnownFailure, ...]


@dataclass(frozen=True, slots=True)
class BackendFinding:
    """The result of the runs on one subject.

    `reason`: why it was skipped or failed, or empty. `causes`: of the failure. `summary`: what was done, in words.
    `seed`: of the last run.
    """

    outcome: Outcome
    reason: str
    causes: tuple[str, ...]
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
    run_one: Callable[[BackendSubject, Path, range, StageProgress], BackendFinding]

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Run each backend to the end, or up to its first failure."""
        begin, subjects = perf_counter(), self.verification.subjects
        executions, environment = [], {}
        for number, subject in enumerate(subjects):
            started = perf_counter()
            finding = self._finding(subject, part_of(progress, number, len(subjects)))
            executions.append(self._execution(subject, finding, perf_counter() - started))
            environment[f"{self.name} of {subject.name}"] = finding.summary
        record = record_of(self.verification.title, executions, environment=environment)
        return StageResult(self.name, record, None, perf_counter() - begin)

    def _finding(self, subject: BackendSubject, progress: StageProgress) -> BackendFinding:
        seeds = range(self.verification.seed, self.verification.seed + self.runs)
        with tempfile.TemporaryDirectory(dir=self._parent(), prefix="hicache-") as folder:
            try:
                return self.run_one(subject, Path(folder), seeds, progress)
            except Exception as error:  # noqa: BLE001 - an exception of a backend is a finding
                causes, reason = causes_of(error, ()), f"{type(error).__name__}: {error}"
                return BackendFinding(Outcome.FAILED, reason, causes, "stopped by an exception", 0, seeds.start)

    def _parent(self) -> Path | None:
        if self.verification.folder is None and self.name == "faults" and MEMORY_FOLDER.is_dir():
            return MEMORY_FOLDER
        return self.verification.folder

    def _execution(self, subject: BackendSubject, finding: BackendFinding, duration_s: float) -> Execution:
        again = ["hicache", "verify-storage", *self.verification.options, "--seed", str(finding.seed)]
        node_id = f"storage::{self.runs:,} {self.name}[{subject.name}]"
        outcome, causes, reason = finding.outcome, finding.causes, finding.reason
        if outcome is not Outcome.SKIPPED:
            outcome, causes, reason = judged(self.verification.known, node_id, (), causes, reason)
        return Execution(
            node_id=node_id,
            suite=self.name,
            clauses=self.clauses,
            configuration=f"storage/{subject.name}",
            outcome=outcome,
            causes=causes,
            reason=reason,
            lacks=(),
            evidence=NO_EVIDENCE,
            replay=shlex.join([*again, f"--{self.option}", "1", "--only", self.name]),
            duration_s=duration_s,
            operations=finding.operations,
        )


def run_faults(subject: BackendSubject, folder: Path, seeds: range, progress: StageProgress) -> BackendFinding:
    """Run one fault run for each seed on one backend, up to the first failure."""
    causes: tuple[str, ...] = ()
    counts, outcome, reason, seed = NO_RUNS, Outcome.PASSED, "", seeds.start
    for seed in seeds:
        try:
            counts += fault_run(subject, folder, seed)
        except InvariantError as error:
            outcome, reason, causes = Outcome.FAILED, str(error), causes_of(error, ())
            break
        progress(counts.runs, len(seeds))
    summary = (
        f"{counts.runs:,} runs with seeds from {seeds.start}: {counts.operations:,} calls, {counts.faults:,} faults, "
        f"{counts.hits:,} pages read, {counts.misses:,} misses"
    )
    return BackendFinding(outcome, reason, causes, summary, counts.operations, seed)


def run_kills(subject: BackendSubject, folder: Path, seeds: range, progress: StageProgress) -> BackendFinding:
    """Kill writers of one backend until as many kills as seeds came before the writer had finished."""
    with closing(KillRuns(subject, folder)) as runs:
        if not runs.reach_others:
            reason = (
                f"the data of {subject.name} is visible only in its own process: after a kill nothing can be checked"
            )
            return BackendFinding(Outcome.SKIPPED, reason, (), f"none: {reason}", runs.operations, seeds.start)
        causes: tuple[str, ...] = ()
        outcome, reason, seed = Outcome.PASSED, "", seeds.start
        while runs.counts.kills < len(seeds) and not reason:
            try:
                runs.run(seed)
            except InvariantError as error:
                outcome, reason = Outcome.FAILED, f"kill with seed {seed}: {error}"
                causes = causes_of(error, ())
                break
            progress(runs.counts.kills, len(seeds))
            seed += 1
        counts = runs.counts
        summary = (
            f"{counts.kills:,} writers killed, seeds from {seeds.start}: {counts.acknowledged:,} acknowledged pages "
            f"were read; of the pages in flight {counts.whole:,} were complete and {counts.absent:,} absent"
        )
        return BackendFinding(outcome, reason, causes, summary, runs.operations, seed)


@dataclass(frozen=True, slots=True)
class ThroughputStage:
    """Measures set and get of large pages on each backend. It checks nothing, so it executes no test."""

    verification: StorageVerification

    @property
    def name(self) -> str:
        """The name in tables and progress bars."""
        return MEASURES

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
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
        record = record_of(self.verification.title, environment=environment)
        return StageResult(self.name, record, problem, perf_counter() - begin)


def _in_words(found: Throughput) -> str:
    set_share, get_share = found.set_rate / found.pwritev_rate, found.get_rate / found.preadv_rate
    return (
        f"set {found.set_rate / 1e9:.2f} GB/s ({set_share:.2f} of pwritev), "
        f"get {found.get_rate / 1e9:.2f} GB/s ({get_share:.2f} of preadv)"
    )
