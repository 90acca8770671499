"""Stage: one part of a verification, and its result; SuiteStage: one test suite, which pytest runs in a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import perf_counter
from typing import IO, Protocol

import hicache
from hicache.testing.report.run import Outcome, RunRecord, read_run

Progress = Callable[[int, int], None]
"""Called with the number of units that are done, and the number of all units."""

_PERCENT = re.compile(r"\[ *(\d+)%\]")
_TAIL_LINES = 15
_MAX_SILENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Verification:
    """What to verify. `adapter`: `module:Class`. `directory`: the folder for the report and the logs."""

    adapter: str
    quick: bool
    directory: Path
    known_failures: Path | None


@dataclass(frozen=True, slots=True)
class StageResult:
    """The result of a stage.

    `record`: the run, or None if the stage ended before there was one. `problem`: an error that is not a failed test,
    or None.
    """

    name: str
    record: RunRecord | None
    problem: str | None
    duration_s: float

    @property
    def failed(self) -> bool:
        """Whether the verification fails because of this stage."""
        return self.problem is not None or self.record is None or self.count(Outcome.FAILED) > 0

    def count(self, outcome: Outcome) -> int:
        """The number of executions with this outcome."""
        executions = self.record.executions if self.record else ()
        return sum(execution.outcome is outcome for execution in executions)


def failed_stages(results: Sequence[StageResult]) -> list[str]:
    """The names of the stages that failed."""
    return [result.name for result in results if result.failed]


class Stage(Protocol):
    """One part of a verification."""

    @property
    def name(self) -> str:
        """The name in tables and progress bars."""

    def run(self, progress: Progress) -> StageResult:
        """Run the stage to its end."""


def part_of(progress: Progress, number: int, parts: int) -> Progress:
    """The progress of one of several parts of equal length, counted from 0."""
    return lambda done, total: progress(number * total + done, parts * total)


@dataclass(frozen=True, slots=True)
class SuiteStage:
    """A test suite. `name`: its folder. `arguments`: further arguments for pytest."""

    name: str
    verification: Verification
    arguments: tuple[str, ...]

    def run(self, progress: Progress) -> StageResult:
        """Run pytest, write its output to `pytest.log`, and read its `run.json`."""
        begin = perf_counter()
        directory = self.verification.directory / self.name
        directory.mkdir(parents=True, exist_ok=True)
        run_file, log = directory / "run.json", directory / "pytest.log"
        # The file of an earlier run must not be taken for that of this run.
        run_file.unlink(missing_ok=True)
        ending = follow(self._command(directory), log, progress)
        record = read_run(run_file) if run_file.exists() else None
        explained = ending == "code 0" or (ending == "code 1" and record is not None and _explains_failure(record))
        problem = None if explained else f"pytest ended with {ending}; {log} ends with:\n{_tail(log)}"
        return StageResult(self.name, record, problem, perf_counter() - begin)

    def _command(self, directory: Path) -> list[str]:
        verification = self.verification
        known = ["--known-failures", str(verification.known_failures)] if verification.known_failures else []
        return [
            *(sys.executable, "-m", "pytest", str(suite_folder(self.name)), *_settings()),
            *("--verbose", "--color=no", "-n", "auto"),
            # These two plugins would write files into the current folder.
            *("-p", "no:cacheprovider", "-p", "no:benchmark"),
            *("--adapter", verification.adapter, "--report", str(directory), *known),
            *(["--quick"] if verification.quick else []),
            *self.arguments,
        ]


def suite_folder(name: str) -> Path:
    """The folder of a suite: beside the package in a source checkout, inside the package if it is installed."""
    package = Path(hicache.__file__).parent
    return package.parent / name if _checkout_settings().is_file() else package / "suites" / name


def follow(command: list[str], log: Path, progress: Progress) -> str:
    """Run pytest, copy its output to a file, and report its percentages.

    Returns `code N` with the exit code of pytest, or a message if pytest was silent for too long and was killed.
    """
    with log.open("w", encoding="utf-8") as copy, started(command) as process:
        assert process.stdout is not None, "started() gives a process whose output is a pipe"
        try:
            for line in lines(process.stdout, _MAX_SILENCE_S):
                copy.write(line)
                if found := _PERCENT.search(line):
                    progress(int(found[1]), 100)
        except TimeoutError as error:
            process.kill()
            return str(error)
        return f"code {process.wait()}"


def _explains_failure(record: RunRecord) -> bool:
    """Whether the executions explain exit code 1: a test failed, or every test of a clause was skipped."""
    # A test without clauses tests the suite itself, and not the cache.
    of_clauses = {execution.outcome for execution in record.executions if execution.clauses}
    failed = any(execution.outcome is Outcome.FAILED for execution in record.executions)
    return failed or of_clauses == {Outcome.SKIPPED}


def _checkout_settings() -> Path:
    return Path(hicache.__file__).parent.parent / "pyproject.toml"


def _settings() -> list[str]:
    """The pytest settings of this project, never those of the current folder."""
    settings = _checkout_settings()
    return ["-c", str(settings) if settings.is_file() else os.devnull, "--rootdir", str(settings.parent)]


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8").splitlines()[-_TAIL_LINES:])


@contextmanager
def started(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """A process with stdout and stderr in one stream, without `PYTEST_ADDOPTS`. It has ended when the block ends."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with subprocess.Popen(  # noqa: S603 - the command is made by this package
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def lines(stream: IO[str], silence_s: float) -> Iterator[str]:
    """Yield each line until the stream ends. Raises TimeoutError if no line comes for `silence_s` seconds."""
    queue: SimpleQueue[str | None] = SimpleQueue()

    def read() -> None:
        for line in stream:
            queue.put(line)
        queue.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = queue.get(timeout=silence_s)
        except Empty:
            raise TimeoutError(f"no output for {silence_s:g} s") from None
        if line is None:
            return
        yield line
