"""SuiteStage: one suite of tests, run by pytest in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import hicache
from hicache.cli.stage import Progress, StageResult, Verification
from hicache.testing.report.run import Outcome, read_run

_PERCENT = re.compile(r"\[ *(\d+)%\]")
_TAIL_LINES = 15


@dataclass(frozen=True, slots=True)
class SuiteStage:
    """A suite by the name of its folder."""

    name: str
    verification: Verification

    def run(self, progress: Progress) -> StageResult:
        """Run pytest, keep all it says in `pytest.log`, and read what it reports."""
        begin = perf_counter()
        directory = self.verification.directory / self.name
        directory.mkdir(parents=True, exist_ok=True)
        run_file, log = directory / "run.json", directory / "pytest.log"
        # What an earlier run left would pass for this one's.
        run_file.unlink(missing_ok=True)
        code = _stream(self._command(directory), log, progress)
        record = read_run(run_file) if run_file.exists() else None
        explained = record is not None and any(one.outcome is Outcome.FAILED for one in record.executions)
        problem = None if code == 0 or explained else f"pytest ended with code {code}; {log} ends with:\n{_tail(log)}"
        return StageResult(self.name, record, problem, perf_counter() - begin)

    def _command(self, directory: Path) -> list[str]:
        asked = self.verification
        known = ["--known-failures", str(asked.known_failures)] if asked.known_failures else []
        return [
            *(sys.executable, "-m", "pytest", str(suite_folder(self.name)), *_settings()),
            *("--verbose", "--color=no", "-p", "no:cacheprovider", "-n", "auto"),
            *("--adapter", asked.adapter, "--report", str(directory), *known),
            *(["--quick"] if asked.quick else []),
        ]


def suite_folder(name: str) -> Path:
    """Where a suite lies: beside the package in a source checkout, inside it when installed."""
    package = Path(hicache.__file__).parent
    beside = package.parent / name
    return beside if beside.is_dir() and _checkout_settings().is_file() else package / "suites" / name


def _checkout_settings() -> Path:
    return Path(hicache.__file__).parent.parent / "pyproject.toml"


def _settings() -> list[str]:
    """The project's own settings, never those of the folder that the user happens to be in."""
    settings = _checkout_settings()
    return ["-c", str(settings) if settings.is_file() else os.devnull, "--rootdir", str(settings.parent)]


def _stream(command: list[str], log: Path, progress: Progress) -> int:
    """Run a command, copy its output to a file, and follow the percentages in it. Returns the exit code."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    with (
        log.open("w", encoding="utf-8") as copy,
        subprocess.Popen(  # noqa: S603 - the command is this Python and paths of our own
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None, "stdout is a pipe"
        for line in process.stdout:
            copy.write(line)
            if found := _PERCENT.search(line):
                progress(int(found[1]), 100)
    return process.returncode


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8").splitlines()[-_TAIL_LINES:])
