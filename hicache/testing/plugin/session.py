"""SuiteSession: one run of the suites, from the collected tests to its result and its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.backends import backends_of, contract_of
from hicache.testing.plugin.hooks import DEFAULT_ADAPTER
from hicache.testing.plugin.journal import Journal
from hicache.testing.plugin.known_failures import KnownFailure, read_known_failures
from hicache.testing.plugin.preparation import prepare
from hicache.testing.plugin.record import record_of
from hicache.testing.plugin.subject import subject_of
from hicache.testing.plugin.tally import Tally
from hicache.testing.report import write_report


class SuiteSession:
    """One run. Raises UsageError when the adapter, the backend or the known failures cannot be read."""

    def __init__(self, config: pytest.Config) -> None:
        self.journal = Journal()
        self._config = config
        self._started = datetime.now(timezone.utc)
        self._known = _read_known_failures(config.getoption("--known-failures"))
        self._tally = Tally((), CONTRACT)
        self._lines: list[str] = []
        if config.getoption("--adapter") != DEFAULT_ADAPTER:
            subject_of(config)
        if any(config.getoption(option) is not None for option in ("--backend", "--backend-config")):
            backends_of(config)

    def prepare(self, items: Iterable[pytest.Item]) -> None:
        """Prepare each test of a suite."""
        for item in items:
            prepare(item, self._known)

    def finish(self, session: pytest.Session) -> None:
        """Decide the result: a run fails when it verified nothing or a known failure is outdated; write its report."""
        executions = self.journal.executions()
        contract = contract_of(self._config, executions)
        self._tally = Tally(executions, contract)
        problems = list(self._problems())
        if problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._lines = [*self._tally.summary(), *(f"ERROR: {problem}" for problem in problems)]
        directory = self._config.getoption("--report")
        if directory is not None:
            page = write_report(record_of(self._config, self._started, executions), Path(directory), contract)
            self._lines.append(f"report: {page}")

    def print_summary(self, terminal: pytest.TerminalReporter) -> None:
        """Print the reasons behind the counts."""
        if self._lines:
            terminal.section("hicache")
        for line in self._lines:
            terminal.line(line, red=line.startswith("ERROR"))

    def print_counts(self) -> None:
        """Print the counts, as the last line of the run."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.line(self._tally.line())

    def _problems(self) -> Iterator[str]:
        if self._tally.verified_nothing():
            yield "no test of any clause was executed: nothing was verified"
        if not _is_part_of_a_suite(self._config):
            for failure in self._tally.unmatched(self._known):
                yield f"{failure.place} matches no executed test: remove it"


def _read_known_failures(path: str | None) -> tuple[KnownFailure, ...]:
    try:
        return () if path is None else read_known_failures(Path(path))
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from error


def _is_part_of_a_suite(config: pytest.Config) -> bool:
    """Whether only a part of a suite was selected, so that tests of a known failure may be missing."""
    narrowing = ("keyword", "markexpr", "deselect", "lf", "quick")
    named_tests = any("::" in argument or argument.endswith(".py") for argument in config.args)
    return named_tests or any(config.getoption(option, None) for option in narrowing)
