"""The pytest plugin of the suites. In a run without a suite and without its options it does and imports nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from hicache.testing.plugin.options import OPTIONS, add_options
from hicache.testing.plugin.profiles import PROFILES, register_profiles
from hicache.testing.plugin.tags import CLAUSE_ID, SUITES, Tags, read_tags

if TYPE_CHECKING:
    # Every pytest run loads this module once hicache is installed, so the rest is imported when it is needed.
    from hicache.testing.plugin.session import SuiteSession

FINAL_CHECK = pytest.StashKey[Callable[[], None]]()
"""A check that runs after the test has passed; a failure of it fails the test."""

KNOWN_FAILURE = pytest.StashKey[str]()
"""The position of the entry that lists a test as a known failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suites."""
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker. Read the values of options now, so that a wrong value ends the run.

    In a run that asks for the suites: by an option, by the package of a suite, or by a clause. A variable or a setting
    alone does not ask for them; it may stand for the tests of a project, where a suite is one folder among others.

    It runs before Hypothesis loads the profile of its option, which may be one of the suites.
    """
    if config.getoption("--hypothesis-profile", None) in PROFILES:
        register_profiles()
    config.addinivalue_line("markers", "clause(checks): the clauses of a test; see hicache.testing.contract.clause")
    plugin = SuitePlugin(config)
    config.pluginmanager.register(plugin, "hicache-suites")
    is_given = any(config.getoption(option.flag) is not None for option in OPTIONS)
    names_a_suite = any(argument.startswith("hicache.suites") for argument in config.args)
    if is_given or names_a_suite or _selects_a_clause(config):
        plugin.session()


def _selects_a_clause(config: pytest.Config) -> bool:
    """Whether -k has what looks like the id of a clause, in a run of a suite."""
    is_of_suite = any(name in argument for argument in config.args for name in SUITES)
    return is_of_suite and CLAUSE_ID.search(config.getoption("keyword")) is not None


class SuitePlugin:
    """The hooks of one run. They pass everything to the session, once a test of a suite is found."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session: SuiteSession | None = None

    def session(self) -> SuiteSession:
        """The session, created at the first call. Raises UsageError where the kit is not installed."""
        if self._session is None:
            require_kit()
            from hicache.testing.plugin.session import SuiteSession

            _keep_to_one_thread()
            self._session = SuiteSession(self._config)
        return self._session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Prepare the tests before any are deselected."""
        if self._session is not None or any(item.get_closest_marker("clause") for item in items):
            self.session().prepare(items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Make the final check part of the test, and disable Hypothesis' shrinking for a known failure."""
        with _no_shrinking(item):
            result = yield
            if FINAL_CHECK in item.stash:
                item.stash[FINAL_CHECK]()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add a failure's replay command, report all failures of a group, and name an outdated known failure."""
        report = yield
        tags = read_tags(report.user_properties)
        if tags is not None and (report.failed or hasattr(report, "wasxfail")):
            self._explain(item, call, report, tags)
        return report

    def _explain(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, tags: Tags) -> None:
        from hicache.testing.plugin.session import explain, forgive, outdate

        if call.excinfo is not None:
            driver = getattr(item, "funcargs", {}).get("driver")
            adapter = getattr(item, "funcargs", {}).get("adapter") if driver is None else driver.adapter
            explain(report, call.excinfo.value, tags.clauses, adapter)
        if report.failed and KNOWN_FAILURE in item.stash and _passed_anyway(report):
            outdate(report, item.stash[KNOWN_FAILURE])
        elif report.failed:
            report.sections.append(("replay", tags.replay))
            forgive(report, self.session().known)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record the reports of the suites' tests, including those that workers send."""
        if self._session is not None or read_tags(report.user_properties) is not None:
            self.session().journal.take(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Decide the result of the run, write its report, and print the counts as the last line."""
        is_main = not hasattr(self._config, "workerinput") and not self._config.getoption("--collect-only")
        if self._session is not None and is_main:
            self._session.finish(session)
        yield
        if self._session is not None and is_main:
            self._session.print_counts()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print why tests were skipped, which clauses were not executed, and where the report is."""
        if self._session is not None:
            self._session.print_summary(terminalreporter)


def require_kit() -> None:
    """Raise UsageError, which ends the run, where a library of the kit is not installed."""
    from hicache.testing.requirements import INSTALL_COMMAND, missing_libraries

    if missing := missing_libraries():
        raise pytest.UsageError(f"hicache: {', '.join(missing)}: not installed; the suites need {INSTALL_COMMAND}")


def _passed_anyway(report: pytest.TestReport) -> bool:
    return isinstance(report.longrepr, str) and report.longrepr.startswith("[XPASS(strict)]")


def _no_shrinking(item: pytest.Item) -> Any:
    if KNOWN_FAILURE not in item.stash or not isinstance(item, pytest.Function):
        return nullcontext()
    from hicache.testing.plugin.known_failures import no_shrinking

    return no_shrinking(item.obj)


def _keep_to_one_thread() -> None:
    """Use one thread in torch: the pools are small, and torch's threads stall when every core runs a test worker."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    # Torch reads the variable when it is imported, and the collected tests have imported it by now.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
