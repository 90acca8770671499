"""SuiteStage: one test suite, which pytest runs in a separate process."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import hicache
from hicache.cli.output import lines, started
from hicache.cli.stage import Progress, StageResult, Verification
from hicache.testing.report.run import Outcome, RunRecord, read_run

_PERCENT = re.compile(r"\[ *(\d+)%\]")
_TAIL_LINES = 15
_MAX_SILENCE_S = 300.0


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
