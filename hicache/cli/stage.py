"""Stage: one part of a verification, and its result; SuiteStage: one test suite, which pytest runs in a process."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from math import inf
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from threading import Event, Thread, current_thread, main_thread
from time import perf_counter
from typing import Protocol, TextIO

import hicache
from hicache.cli.program import SAFE_PATH, program
from hicache.storage.secrets import redacted
from hicache.testing.plugin.options import ENGINE_SOURCE, OPTIONS
from hicache.testing.processes import FORKED
from hicache.testing.report.legible import legible
from hicache.testing.report.run import (
    NO_EVIDENCE,
    NO_PROFILE,
    SCHEMA_VERSION,
    Execution,
    Outcome,
    RunRecord,
    read_run,
)


class StageProgress(Protocol):
    """Called with the numbers of units that are done, of all units, and of failures so far."""

    def __call__(self, done: int, total: int, failures: int = 0) -> None:
        """Show the progress of a stage."""


_PERCENT = re.compile(r"\[ *(\d+)%\]")
_FAILURE = re.compile(r"\[ *\d+%\] (FAILED|ERROR) ")
_TAIL_LINES = 15
_MAX_SILENCE_S = 300.0
_MAX_OUTPUT = 50_000_000
_MAX_RESTARTS = 4
_GRACE_S = 60.0
_POLL_S = 0.5
_MAX_QUEUED = 1000
_THREADS = "OMP_NUM_THREADS"

MOSTLY_WAITS = "distributed_tests"
"""The stage that leaves cores free: its tests wait for a rank that does not answer in time."""

MEASURES = "throughput"
"""The stage that measures, and has nothing to check."""

LEFT_BEHIND = "left a thread or a process running"

WENT_ON = "left a fork behind, which went on with the run"

INTERRUPTED = "interrupted"
"""The problem of a stage that Ctrl-C or SIGTERM ended."""

TEST_LIMIT_S = {"conformance": 60.0}
"""How long one test of a suite may take. Tests of other suites may take as long as a process may be silent."""


class StageTimeoutError(TimeoutError):
    """A stage took longer than it may."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What to verify. `adapter`: `module:Class`. `directory`: the folder for the report and the logs.

    `keyword`: of the tests to run, as for pytest; empty for all. `stops`: end at the first failure. `jobs`: the number
    of processes that run the tests of a suite, by default one for each core. `timeout_s`: how long a stage may take.
    `baseline`: the `run.json` of an earlier run, whose failures do not count. `engine_source`: the source tree that the
    engine is imported from, or None. `profile` and `capabilities` are those of the adapter.
    """

    adapter: str
    quick: bool
    directory: Path
    known_failures: Path | None
    keyword: str = ""
    stops: bool = False
    jobs: int | None = None
    timeout_s: float = inf
    baseline: Path | None = None
    engine_source: Path | None = None
    profile: str = NO_PROFILE
    capabilities: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a stage.

    `record`: the run, or None if the stage has none. `problem`: an error that is not a failed test, or None.
    """

    name: str
    record: RunRecord | None
    problem: str | None
    duration_s: float

    @property
    def failed(self) -> bool:
        """Whether the verification fails because of this stage."""
        return self.problem is not None or self.record is None or self.count(Outcome.FAILED) > 0

    @property
    def checked_nothing(self) -> bool:
        """Whether no clause was executed, though the stage is there to check some."""
        executions = self.record.executions if self.record else ()
        has_checked = any(one.clauses for one in executions if one.outcome is not Outcome.SKIPPED)
        return self.name != MEASURES and not has_checked

    def count(self, outcome: Outcome) -> int:
        """The number of executions with this outcome."""
        executions = self.record.executions if self.record else ()
        return sum(execution.outcome is outcome for execution in executions)

    @property
    def verbs(self) -> int:
        """The number of calls of the cache under test, each followed by a check of the whole cache."""
        return sum(execution.operations for execution in self.record.executions) if self.record else 0

    @property
    def processes(self) -> int:
        """The number of processes that the tests started, beside those that run the tests."""
        return sum(execution.processes for execution in self.record.executions) if self.record else 0


def failed_stages(results: Sequence[StageResult]) -> list[str]:
    """The names of the stages that failed."""
    return [result.name for result in results if result.failed]


class Stage(Protocol):
    """One part of a verification."""

    @property
    def name(self) -> str:
        """The name in tables and progress bars."""

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Run the stage to its end. Another thread sets `interrupt` to end it with what it has, as Ctrl-C does."""


def part_of(progress: StageProgress, number: int, parts: int) -> StageProgress:
    """The progress of one of several parts of equal length, counted from 0."""
    return lambda done, total, failures=0: progress(number * total + done, parts * total, failures)


@dataclass(frozen=True, slots=True)
class SuiteStage:
    """A test suite. `name`: its folder. `arguments`: further arguments for pytest."""

    name: str
    verification: Verification
    arguments: tuple[str, ...]

    def run(self, progress: StageProgress, interrupt: Event) -> StageResult:
        """Run pytest, write its output to `pytest.log`, and read its `run.json`."""
        directory = self.verification.directory / self.name
        command = self._command(directory)
        return run_process(self.name, command, directory / "pytest.log", progress, interrupt, self.verification)

    def _command(self, directory: Path) -> list[str]:
        verification = self.verification
        known = ["--hicache-known-failures", str(verification.known_failures)] if verification.known_failures else []
        limit = TEST_LIMIT_S.get(self.name, _MAX_SILENCE_S)
        return [
            *program("pytest", str(suite_folder(self.name)), *_settings()),
            # Every assertion of the suites has a message: to rewrite them would only cost time.
            *("-vv", "--color=no", "--assert=plain", "-n", self._workers(), "--dist", "worksteal"),
            # A test that hangs ends its worker, and is a failure by name. Each such test costs this time.
            *("-o", f"faulthandler_timeout={limit:g}", "-o", "faulthandler_exit_on_timeout=true"),
            *("--max-worker-restart", str(_MAX_RESTARTS)),
            # These two plugins would write files into the current folder.
            *("-p", "no:cacheprovider", "-p", "no:benchmark"),
            *("--hicache-adapter", verification.adapter, "--hicache-report", str(directory / "run.json"), *known),
            *(["--hicache-baseline", str(verification.baseline)] if verification.baseline else []),
            *([ENGINE_SOURCE.flag, str(verification.engine_source)] if verification.engine_source else []),
            "--hicache-repeat",
            *(["--hicache-quick"] if verification.quick else []),
            *(["-k", verification.keyword] if verification.keyword else []),
            *(["-x"] if verification.stops else []),
            *self.arguments,
        ]

    def _workers(self) -> str:
        """How many processes run the tests."""
        if self.verification.jobs is not None:
            return str(self.verification.jobs)
        cores = os.cpu_count() or 1
        return str(cores + (cores + 1) // 2) if self.name == MOSTLY_WAITS else "auto"


def run_process(
    name: str, command: list[str], log: Path, progress: StageProgress, interrupt: Event, verification: Verification
) -> StageResult:
    """Run a process that writes `run.json` into a folder, and its output to a log there, and watch it.

    However it ends, the result says so: it exits without a record, is killed, is silent for too long, writes too much,
    or leaves a thread or a process behind. This is a failed execution of the record.
    """
    begin, started = perf_counter(), datetime.now(timezone.utc)
    log.parent.mkdir(parents=True, exist_ok=True)
    run_file = log.parent / "run.json"
    # The file of an earlier run must not be taken for that of this run.
    run_file.unlink(missing_ok=True)
    ending = follow(command, log, run_file, progress, interrupt, verification.timeout_s)
    is_whole = run_file.exists()
    if is_whole:
        record = read_run(run_file)
    else:
        profile, capabilities = verification.profile, verification.capabilities
        record = record_of(verification.adapter, started=started, profile=profile, capabilities=capabilities)
    if ending == INTERRUPTED or (is_whole and _explains(record, ending, verification)):
        problem = INTERRUPTED if ending == INTERRUPTED else None
    else:
        told = f"the process {ending}{'' if is_whole else ', and left no record'}"
        problem = f"{told}; {log} ends with:\n{_tail(log)}"
        failure = _failure(name, verification.adapter, told, problem, perf_counter() - begin)
        record = replace(record, executions=(*record.executions, failure))
    return StageResult(name, record, problem, perf_counter() - begin)


def record_of(
    implementation: str,
    executions: Iterable[Execution] = (),
    *,
    started: datetime | None = None,
    environment: Mapping[str, str] | None = None,
    profile: str = NO_PROFILE,
    capabilities: Iterable[str] = (),
) -> RunRecord:
    """The record of a stage. `started`: by default now."""
    from hicache.testing.plugin.known_failures import VERSIONS

    return RunRecord(
        schema_version=SCHEMA_VERSION,
        versions=VERSIONS,
        implementation=implementation,
        started=(started or datetime.now(timezone.utc)).isoformat(timespec="seconds"),
        environment=environment or {},
        profile=profile,
        capabilities=tuple(capabilities),
        executions=tuple(executions),
    )


def _failure(stage: str, adapter: str, told: str, problem: str, duration_s: float) -> Execution:
    """The failure of a stage itself."""
    return Execution(
        node_id=f"{stage}::the process of the stage",
        suite=stage,
        clauses=(),
        configuration="",
        outcome=Outcome.FAILED,
        causes=(f"{stage}: {told}",),
        reason=problem,
        lacks=(),
        evidence=NO_EVIDENCE,
        replay=shlex.join(["hicache", "verify", "--adapter", adapter, "--only", stage]),
        duration_s=duration_s,
        operations=0,
    )


def suite_folder(name: str) -> Path:
    """The folder of a suite: beside the package in a source checkout, inside the package if it is installed."""
    package = Path(hicache.__file__).parent
    return package.parent / name if _checkout_settings().is_file() else package / "suites" / name


def follow(
    command: list[str], log: Path, run_file: Path, progress: StageProgress, interrupt: Event, limit_s: float = inf
) -> str:
    """Run a process, copy its output to a file, and report its percentages and failures.

    Returns what the process did, such as `ended with code 0`, or INTERRUPTED. `run_file`: the process writes it as
    its last act, and has to end soon after. After Ctrl-C, once `interrupt` is set, or after `limit_s` seconds it is
    asked to end with what it has. Its temporary files are removed when it has ended, however it ends.
    """
    with ExitStack() as stack:
        stack.enter_context(terminable())
        # A process that left the group may still write into the folder; ignore a folder that cannot be removed.
        temporary = stack.enter_context(TemporaryDirectory(prefix="hicache-", ignore_cleanup_errors=True))
        copy = stack.enter_context(log.open("w", encoding="utf-8"))
        process = stack.enter_context(closing(WatchedProcess(command, temporary)))
        try:
            ending = _ending(process, copy, run_file, progress, interrupt, limit_s)
        except KeyboardInterrupt:
            _end(process, copy)
            return INTERRUPTED
        return WENT_ON if process.went_on() else ending


def _ending(
    process: WatchedProcess, copy: TextIO, run_file: Path, progress: StageProgress, interrupt: Event, limit_s: float
) -> str:
    failures = 0
    try:
        for line in bounded(process.lines(_MAX_SILENCE_S, run_file, interrupt, limit_s), _MAX_OUTPUT):
            copy.write(redacted(line))
            failures += _FAILURE.search(line) is not None
            if found := _PERCENT.search(line):
                progress(int(found[1]), 100, failures)
        return ended(process.wait())
    except StageTimeoutError as error:
        _end(process, copy)
        return str(error)
    except TimeoutError as error:
        return str(error)


def ended(code: int) -> str:
    """How a process ended. `code`: its exit code, or the number of the signal that killed it as a negative number."""
    names = {one.value: one.name for one in signal.Signals}
    return f"ended with code {code}" if code >= 0 else f"was killed by {names.get(-code, f'signal {-code}')}"


def _end(process: WatchedProcess, copy: TextIO) -> None:
    """Ask a process to end with its partial results, and log its output."""
    with suppress(TimeoutError):
        copy.writelines(map(redacted, bounded(process.interrupted(), _MAX_OUTPUT)))


def bounded(lines: Iterable[str], limit: int) -> Iterator[str]:
    """The lines. Raises TimeoutError when they have more than `limit` characters together."""
    written = 0
    for line in lines:
        written += len(line)
        if written > limit:
            raise TimeoutError(f"wrote more than {limit:,} characters of output")
        yield line


class WatchedProcess:
    """A process in a process group of its own, with stdout and stderr in one stream, and a cleaned environment.

    Without the variables of pytest and of its plugin: a run has the options of the command alone, and the plugins that
    are installed. torch has one thread, unless the environment sets another number: each core already has a process.
    `temporary`: the folder for its temporary files.
    """

    def __init__(self, command: Sequence[str], temporary: str) -> None:
        ignored = (
            "PYTEST_ADDOPTS",
            "PYTEST_PLUGINS",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD",
            *(option.variable for option in OPTIONS),
        )
        environment = {_THREADS: "1"} | {name: value for name, value in os.environ.items() if name not in ignored}
        self._forked = Path(temporary) / "forked"
        environment |= {**dict.fromkeys(("TMPDIR", "TEMP", "TMP"), temporary), FORKED: str(self._forked), **SAFE_PATH}
        self._process = subprocess.Popen(  # noqa: S603 - the command is made by this package
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            start_new_session=True,
        )
        # Bounded, so that a process that prints without end waits, and does not fill the memory.
        self._queue: Queue[str | None] = Queue(_MAX_QUEUED)
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def lines(self, silence_s: float, run_file: Path, interrupt: Event, limit_s: float = inf) -> Iterator[str]:
        """Yield each line of output until the stream ends.

        Raises KeyboardInterrupt once `interrupt` is set. Raises TimeoutError if no line comes for `silence_s` seconds,
        or if the stream goes on after the process has ended or has written its run: a thread keeps it alive, or a
        process that it started holds the stream. Raises StageTimeoutError after `limit_s` seconds.
        """
        waited, begin = 0.0, perf_counter()
        while True:
            if interrupt.is_set():
                raise KeyboardInterrupt
            if perf_counter() - begin > limit_s:
                # A process that has written its run must end.
                is_ending = self._process.poll() is not None or run_file.exists()
                if not is_ending:
                    raise StageTimeoutError(f"took longer than {limit_s:g} s, the limit of --timeout")
                if perf_counter() - begin > limit_s + _GRACE_S:
                    raise TimeoutError(LEFT_BEHIND)
            try:
                line = self._queue.get(timeout=_POLL_S)
            except Empty:
                waited += _POLL_S
                if waited >= _GRACE_S and (self._process.poll() is not None or run_file.exists()):
                    raise TimeoutError(LEFT_BEHIND) from None
                if waited >= silence_s:
                    raise TimeoutError(f"wrote no output for {silence_s:g} s") from None
                continue
            waited = 0.0
            if line is None:
                return
            yield line

    def wait(self) -> int:
        """The exit code. Raises TimeoutError when the process closed its output and does not end."""
        try:
            return self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            raise TimeoutError(LEFT_BEHIND) from None

    def interrupted(self) -> Iterator[str]:
        """Ask the process to end with what it has, give it a little time, and yield what it still writes."""
        self._process.send_signal(signal.SIGINT)
        end = perf_counter() + _GRACE_S
        # Its output is read on: a process whose pipe is full would never end.
        while (left := end - perf_counter()) > 0:
            try:
                line = self._queue.get(timeout=min(left, _POLL_S))
            except Empty:
                if self._process.poll() is not None:
                    return
                continue
            if line is None:
                return
            yield line

    def went_on(self) -> bool:
        """Whether a fork that the cache under test left behind went on with the run."""
        return self._forked.exists()

    def close(self) -> None:
        """Kill the process and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        while self._reader.is_alive():
            with suppress(Empty):
                self._queue.get(timeout=_POLL_S)
        assert self._process.stdout is not None, "the process was started with a pipe"
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None, "the process was started with a pipe"
        for line in self._process.stdout:
            self._queue.put(line)
        self._queue.put(None)


def _explains(record: RunRecord, ending: str, verification: Verification) -> bool:
    """Whether the executions explain how pytest ended.

    With code 1: a test failed. With code 2: a test failed, which stopped the run. With code 5: every test of a clause
    was skipped, or -k selected none.
    """
    # A test without clauses tests the suite itself, and not the cache.
    of_clauses = {execution.outcome for execution in record.executions if execution.clauses}
    failed = any(execution.outcome is Outcome.FAILED for execution in record.executions)
    nothing = bool(verification.keyword) and of_clauses <= {Outcome.SKIPPED}
    return {
        ended(0): True,
        ended(1): failed,
        ended(2): failed and verification.stops,
        ended(5): nothing or of_clauses == {Outcome.SKIPPED},
    }.get(ending, False)


@contextmanager
def terminable() -> Iterator[None]:
    """Take SIGTERM as Ctrl-C, so that the processes which run here are ended too. A handler that is set stays."""
    is_replaced = current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if is_replaced:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if is_replaced:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _checkout_settings() -> Path:
    return Path(hicache.__file__).parent.parent / "pyproject.toml"


def _settings() -> list[str]:
    """The pytest settings of this project, never those of the current folder."""
    settings = _checkout_settings()
    return ["-c", str(settings) if settings.is_file() else os.devnull, "--rootdir", str(settings.parent)]


def _tail(log: Path) -> str:
    return legible("\n".join(log.read_text(encoding="utf-8").splitlines()[-_TAIL_LINES:]))
