"""The pytest plugin of the suites. In a run without a suite, a driver and its options it does and imports nothing."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from hicache.testing.plugin.items import (
    DOING_FOLDER,
    FINAL_CHECK,
    KNOWN_FAILURE,
    STARTED_BEFORE,
    doing_folder,
    make_ids_plain,
)
from hicache.testing.plugin.options import (
    ENGINE_SOURCE,
    OPTIONS,
    PROFILES,
    add_options,
    has_searches,
    register_profiles,
    suite_profile,
)
from hicache.testing.plugin.tags import CLAUSE_ID, COLLECTIVES, PROCESSES, SUITES, Tags, has_driver, read_tags

if TYPE_CHECKING:
    # Every pytest run loads this module once hicache is installed, so the rest is imported when it is needed.
    from hicache.testing.plugin.fixtures import OpenDriver
    from hicache.testing.plugin.session import SuiteSession

_PROFILE_OPTION = "--hypothesis-profile"
_PLUGIN = "hicache-suites"


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
    if (source := ENGINE_SOURCE.text(config)) is not None:
        _use_source(source, config)
    if config.getoption(_PROFILE_OPTION, None) in PROFILES:
        register_profiles()
    config.addinivalue_line("markers", "clause(checks): the clauses of a test; see hicache.testing.contract.clause")
    config.addinivalue_line("markers", "meshes(*meshes): the ranks that a test of distributed_tests runs on")
    config.addinivalue_line("markers", "waits: the test mostly waits, and begins before those that compute")
    plugin = SuitePlugin(config)
    config.pluginmanager.register(plugin, _PLUGIN)
    config.pluginmanager.register(RepetitionPlugin(plugin), "hicache-repetition")
    # A source alone does not ask for the suites: the tests of the engine itself are run from it as well.
    is_given = any(config.getoption(one.flag) is not None for one in OPTIONS if one is not ENGINE_SOURCE)
    names_a_suite = any(argument.startswith("hicache.suites") for argument in config.args)
    if is_given or names_a_suite or _selects_a_clause(config):
        plugin.session()


def _use_source(path: str, config: pytest.Config) -> None:
    """Import the engine under test from a source tree until the end of the run. Exit code 2 if it has none."""
    require_kit()
    from hicache.errors import ConfigurationError
    from hicache.testing.engine_source import use_source

    try:
        config.add_cleanup(use_source(Path(path)))
    except ConfigurationError as error:
        pytest.exit(f"{ENGINE_SOURCE.source(config)}: {error}", returncode=2)


def _selects_a_clause(config: pytest.Config) -> bool:
    """Whether -k has what looks like the id of a clause, in a run of a suite."""
    is_of_suite = any(name in argument for argument in config.args for name in SUITES)
    return is_of_suite and CLAUSE_ID.search(config.getoption("keyword")) is not None


@pytest.fixture
def hicache_driver(request: pytest.FixtureRequest) -> Iterator[OpenDriver]:
    """Open a cache and a driver of it: `hicache_driver(MyAdapter, config)`.

    The driver checks the cache after each verb, and once more at the end of the test. Without an adapter it is that of
    the class, or of the run; without a configuration the first one of the adapter. May be called more than once.
    """
    require_kit()
    from hicache.testing.plugin.fixtures import own_drivers

    plugin: Any = request.config.pluginmanager.get_plugin(_PLUGIN)
    plugin.include(request.node)
    yield from own_drivers(request)


class SuitePlugin:
    """The hooks of one run. They pass everything to the session, once a test of a suite is found."""

    _has_frozen: ClassVar[bool] = False
    """Whether a run in this process has left what there is out of the search for garbage."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._session: SuiteSession | None = None
        self._process = os.getpid()
        self._failed_searches = 0

    def session(self) -> SuiteSession:
        """The session, created at the first call. Raises UsageError where the kit is not installed."""
        if self._session is None:
            require_kit()
            from hicache.testing.imports import without_collection

            with without_collection():
                from hicache.testing.plugin.session import SuiteSession

            _keep_to_one_thread()
            self._session = SuiteSession(self._config)
        return self._session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Prepare the tests before any are deselected. Those that wait begin: at the end they would waste a core."""
        if self._session is not None or any(map(_is_of_a_cache, items)):
            self.session().prepare(items)
            items.sort(key=lambda item: item.get_closest_marker("waits") is None)

    def include(self, item: pytest.Item) -> None:
        """Prepare a test that asks for a driver while it runs, which was not seen when it was collected."""
        if read_tags(item.user_properties) is None:
            item.stash[STARTED_BEFORE] = _processes_started()
            self.session().include(item)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, Any, Any]:
        """Look for no garbage while tests are collected: what is made then stays."""
        pauses = self._session is not None and gc.isenabled()
        if pauses:
            gc.disable()
        try:
            return (yield)
        finally:
            if pauses:
                gc.enable()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Leave out what was imported and collected when garbage is looked for: it stays until the end of the run.

        What a run within another one leaves would stay too, so it does not do this again.
        """
        if self._session is not None and not SuitePlugin._has_frozen:
            SuitePlugin._has_frozen = True
            gc.collect()
            gc.freeze()

    @pytest.hookimpl(tryfirst=True)
    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Name the parameters of the suites' tests so that a shell takes the ids unquoted."""
        make_ids_plain(metafunc)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Import the modules of a suite in the profile of the suites: a decorator reads the settings of its time."""
        with self._profile(collector):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run the tests of a suite in the profile of the suites, and count the processes that they start."""
        if self._session is not None:
            item.stash[STARTED_BEFORE] = _processes_started()
            _collectives_seen()
        with self._profile(item):
            try:
                return (yield)
            finally:
                # It holds the cache, and the run holds its tests until it ends.
                if FINAL_CHECK in item.stash:
                    del item.stash[FINAL_CHECK]

    @property
    def is_begun(self) -> bool:
        """Whether a test of a suite was found."""
        return self._session is not None

    def _profile(self, node: pytest.Item | pytest.Collector) -> AbstractContextManager[None]:
        is_chosen = self._config.getoption(_PROFILE_OPTION, None) is not None
        return suite_profile(node.path, self._failed_searches, is_chosen=is_chosen)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Remember the process in which a test begins: pytest-forked begins each one in another."""
        self._process = os.getpid()
        if self._session is not None:
            from hicache.testing.plugin.failures import CALLED

            CALLED.forget()

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
        """Add a failure's replay command, report all failures of a group, and name an obsolete known failure."""
        tags = read_tags(item.user_properties)
        if tags is not None:
            from hicache.testing.processes import end_if_forked

            end_if_forked(self._process)
        with _hidden_frames(item, call):
            report = yield
        if call.excinfo is not None and isinstance(call.excinfo.value, ImportError) and hasattr(report, "wasxfail"):
            # A cache that cannot be imported has not shown a failure that is listed.
            report.outcome = "failed"
            del report.wasxfail
        if tags is not None and call.when == "teardown":
            report.user_properties.append((PROCESSES, _processes_started() - item.stash[STARTED_BEFORE]))
            report.user_properties.append((COLLECTIVES, " ".join(_collectives_seen())))
            report.user_properties.extend(_witnessed())
        if tags is not None and (report.failed or hasattr(report, "wasxfail")):
            self._failed_searches += report.failed and call.when == "call" and has_searches(item.path)
            self._explain(item, call, report, tags)
        return report if tags is None else _without_secrets(report, item.config)

    def _explain(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, tags: Tags) -> None:
        from hicache.testing.plugin.journal import explain, mark_failed_before, mark_known, mark_obsolete, shown

        if call.excinfo is not None:
            explain(report, call.excinfo.value, tags.clauses)
        if report.failed and KNOWN_FAILURE in item.stash and _passed_anyway(report):
            mark_obsolete(report, item.stash[KNOWN_FAILURE])
        elif report.failed:
            report.sections.extend(shown(report))
            report.sections.append(("replay", tags.replay))
            mark_known(report, self.session().known)
            mark_failed_before(report, self.session().baseline)

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
        elif self._session is not None and hasattr(self._config, "workeroutput"):
            self._config.workeroutput.update(self._session.output())
        yield
        if self._session is not None and is_main:
            self._session.print_counts()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record that a test has begun."""
        if self._session is not None:
            self._session.workers.begin(nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Record that a test has ended."""
        if self._session is not None:
            self._session.workers.end(nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker process where it says what it does, before it is known whether it runs tests of a suite."""
        node.workerinput[DOING_FOLDER] = str(doing_folder(self._config))

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: Any) -> None:
        """Add the cause to the failure of a test whose process ended."""
        # Only a worker with tests of a suite says what it does. The first test of a run may be the one that died.
        if self._session is not None or any(doing_folder(self._config).iterdir()):
            self.session().workers.explain(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Take over what a worker process says at its end."""
        if self._session is not None:
            self._session.workers.ended(getattr(node, "workeroutput", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print why tests were skipped, which clauses were not executed, and where the report is."""
        if self._session is not None:
            self._session.print_summary(terminalreporter)


class RepetitionPlugin:
    """Runs the tests of suites, inside the wrapper of SuitePlugin, which cannot run them itself."""

    def __init__(self, suites: SuitePlugin) -> None:
        self._suites = suites

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Run a test of a suite, and repeat it if it failed and repetitions are asked for."""
        if not self._suites.is_begun or read_tags(item.user_properties) is None:
            return None
        return self._suites.session().repetition.run(item, nextitem)


def _is_of_a_cache(item: pytest.Item) -> bool:
    """Whether a test names a clause, or has a driver of a cache."""
    return item.get_closest_marker("clause") is not None or has_driver(item)


def require_kit() -> None:
    """Raise UsageError, which ends the run, where a library of the kit is not installed."""
    from hicache.testing.requirements import INSTALL_COMMAND, missing_libraries

    if missing := missing_libraries():
        raise pytest.UsageError(f"hicache: {', '.join(missing)}: not installed; the suites need {INSTALL_COMMAND}")


def _without_secrets(report: pytest.TestReport, config: pytest.Config) -> pytest.TestReport:
    """The report without the secrets of options. pytest shows the arguments of functions, and what was printed."""
    from hicache.storage.secrets import any_secrets
    from hicache.testing.report.redaction import without_secrets

    if not any_secrets():
        return report
    words = config.hook.pytest_report_to_serializable(config=config, report=report)
    shown: pytest.TestReport = config.hook.pytest_report_from_serializable(config=config, data=without_secrets(words))
    return shown


def _processes_started() -> int:
    from hicache.testing.process_starts import process_starts

    return process_starts().count


def _hidden_frames(item: pytest.Item, call: pytest.CallInfo[None]) -> AbstractContextManager[None]:
    """Hide the frames of the kit in the report of a failed test that has tags."""
    if call.excinfo is None or read_tags(item.user_properties) is None:
        return nullcontext()
    from hicache.testing.plugin.failures import hidden_frames, shows_all

    if shows_all(item.config):
        return nullcontext()
    return hidden_frames(call.excinfo.value, item.path, item.config.rootpath)


def _witnessed() -> list[tuple[str, int]]:
    """What the adapters of this process have shown since the last call."""
    from hicache.testing.plugin.witnesses import WITNESSED

    return WITNESSED.take()


def _collectives_seen() -> tuple[str, ...]:
    """The backends on which collectives were seen since the last call."""
    from hicache.testing.ranks.seen import SEEN

    return SEEN.take()


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
    # Torch reads the variable when it is imported, and the collected tests have already imported it.
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
