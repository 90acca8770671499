"""SuiteSession: one run of the suites, from the collected tests to its result and its report."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from hicache import __version__
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import CONTRACT, Checks, Clause
from hicache.testing.devices import driver, gpu_names
from hicache.testing.laws import CHECKED_AFTER_EACH_VERB
from hicache.testing.levels import Level
from hicache.testing.plugin.failures import (
    FLAKY,
    read_causes,
    to_property,
)
from hicache.testing.plugin.items import KNOWN_FAILURE
from hicache.testing.plugin.journal import ReportJournal, RunTally
from hicache.testing.plugin.known_failures import (
    VERSIONS,
    Baseline,
    KnownFailure,
    narrower,
    read_baseline,
    read_known_failures,
    renamed,
)
from hicache.testing.plugin.options import (
    BACKEND,
    BACKEND_CONFIG,
    BASELINE,
    DEFAULT_ADAPTER,
    KNOWN_FAILURES,
    QUICK,
    REPEAT,
    REPORT,
    adapter_path,
    assignments,
    subject_words,
)
from hicache.testing.plugin.selection import (
    Selection,
    adapter_of,
    backends_of,
    contract_of,
    has_subject,
    own_adapter,
    select_clauses,
    subject_of,
    undeclared,
)
from hicache.testing.plugin.tags import (
    CLAUSE_ID,
    Tags,
    has_driver,
    named_subject,
    place_in_suite,
    suite_of,
)
from hicache.testing.plugin.workers import IDENTITY, LEFT_THREADS, Identity, Workers
from hicache.testing.processes import left_threads
from hicache.testing.ranks.world import Mesh
from hicache.testing.report import leaving_out, write_report, write_run
from hicache.testing.report.coverage import applying_clauses
from hicache.testing.report.gpu import DRIVER, GPU, NO_GPU, parts_run
from hicache.testing.report.matrix import overview
from hicache.testing.report.run import (
    COMMIT,
    NO_EVIDENCE,
    NO_PROFILE,
    SCHEMA_VERSION,
    Execution,
    Outcome,
    RunRecord,
)
from hicache.testing.report.targets import require_file, require_folder
from hicache.testing.storage.subject import BackendSubject, require_opened

PACKAGES = ("numpy", "torch", "pytest", "hypothesis", "sglang")
"""The packages whose versions a run records, where they are installed."""

NOTHING_VERIFIED = "no test of any clause was executed: nothing was verified"


class SuiteSession:
    """One run. Raises UsageError when the adapter, the backend or the known failures cannot be read.

    Also for `-k` with the id of a clause that the contract does not have: it would select nothing, after a while.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.journal = ReportJournal()
        self.workers = Workers(config)
        self._config = config
        self._started = datetime.now(timezone.utc)
        self.known = _read_known_failures(KNOWN_FAILURES.text(config))
        self.repetition = Repetition(is_on=REPEAT.switch(config) and not config.getoption("reruns", None))
        self._tally = RunTally((), CONTRACT, ())
        self._lines: list[str] = []
        if unknown := sorted(set(CLAUSE_ID.findall(config.getoption("keyword", ""))) - CONTRACT.keys()):
            raise pytest.UsageError(f"-k: the contract has no clause {', '.join(unknown)}")
        if adapter_path(config) != DEFAULT_ADAPTER:
            subject_of(config)
        if any(option.text(config) is not None for option in (BACKEND, BACKEND_CONFIG)):
            backends_of(config)
        self.baseline, self._warning = self._read_baseline()
        if not hasattr(config, "workerinput"):
            require_usable(config)

    def _read_baseline(self) -> tuple[Baseline | None, str]:
        path = BASELINE.text(self._config)
        if path is None:
            return None, ""
        implementation, profile, _ = identity_of(self._config)
        try:
            return read_baseline(Path(path), implementation, profile)
        except ConfigurationError as error:
            raise pytest.UsageError(f"{BASELINE.source(self._config)}: {error}") from error

    def prepare(self, items: Iterable[pytest.Item]) -> None:
        """Prepare each test of a suite, and of a project that has a driver."""
        subject = tuple(subject_words(self._config))
        for item in items:
            if item.get_closest_marker("clause") or suite_of(item.path, item.config.rootpath) or has_driver(item):
                prepare(item, self.known, subject)

    def include(self, item: pytest.Item) -> None:
        """Prepare a test of a project that asks for a driver while it runs."""
        prepare(item, self.known, tuple(subject_words(self._config)))

    def output(self) -> dict[str, Any]:
        """What a worker process says at its end, as its `workeroutput`."""
        identity = {IDENTITY: identity_of(self._config)} if has_subject(self._config) else {}
        return {LEFT_THREADS: left_threads(), **identity}

    def finish(self, session: pytest.Session) -> None:
        """Decide the result: a run fails when it verified nothing or a known failure is obsolete; write its report."""
        executions = self.journal.executions()
        if session.exitstatus != pytest.ExitCode.INTERRUPTED and (left := self.workers.left_behind()):
            executions = (*executions, failed_workers(self._config, executions, left))
        contract = contract_of(self._config, executions)
        self._tally = RunTally(executions, contract, self._applying(executions, contract))
        problems = list(self._problems())
        if problems and session.exitstatus == pytest.ExitCode.OK:
            nothing = problems == [NOTHING_VERIFIED]
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED if nothing else pytest.ExitCode.TESTS_FAILED
        notes = [self._warning] if self._warning else []
        notes += self.baseline.summary(executions) if self.baseline is not None else []
        notes += undeclared_recency(subject_of(self._config).adapter) if has_subject(self._config) else []
        self._lines = [
            *self._tally.summary(),
            *notes,
            *renamed(self.known),
            *narrower(self.known, executions),
            *(f"ERROR: {problem}" for problem in problems),
        ]
        place = REPORT.text(self._config)
        if place is not None:
            identity = self.workers.identity or identity_of(self._config)
            record = record_of(self._config, self._started, executions, identity, self.journal.subjects())
            record = replace(record, environment={**record.environment, **self.journal.witnesses()})
            stopped = bool(session.shouldstop or session.shouldfail)
            if stopped or self._config.getoption("keyword") or self._config.getoption("markexpr"):
                record = leaving_out(record, Level)
            self._lines.append(f"report: {_write(record, Path(place), contract)}")

    def _applying(self, executions: Sequence[Execution], contract: Mapping[str, Clause]) -> Sequence[Clause]:
        """The clauses that apply to the subject of the run; all where this process does not know the subject."""
        is_known = self.workers.identity or has_subject(self._config)
        if not is_known or "" not in self.journal.subjects():
            return tuple(contract.values())
        identity = self.workers.identity or identity_of(self._config)
        record = record_of(self._config, self._started, executions, identity)
        return applying_clauses(overview(record, contract))

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
        if flaky := self._tally.flaky():
            yield f"flaky, they fail and pass: {', '.join(flaky)}"
        yield from self.workers.problems()
        if self._tally.verified_nothing():
            yield NOTHING_VERIFIED
        if not _is_part_of_a_suite(self._config):
            for failure in self._tally.unmatched(self.known):
                yield f"{failure.place} matches no executed test: remove it"


def undeclared_recency(adapter: type[CacheAdapter]) -> list[str]:
    """The line that names the recency which is assumed of a cache with states whose adapter declares none."""
    if Capability.MAMBA not in adapter.capabilities or adapter.recencies is not CacheAdapter.recencies:
        return []
    return [f"recency: {adapter.recencies[0].value} (not declared)"]


def failed_workers(config: pytest.Config, executions: Sequence[Execution], problem: str) -> Execution:
    """The failure of the worker processes, which is that of no test. `problem`: what they left."""
    return Execution(
        node_id="the worker processes",
        suite=executions[-1].suite if executions else "",
        clauses=(),
        configuration="",
        outcome=Outcome.FAILED,
        causes=(problem,),
        reason=problem,
        lacks=(),
        evidence=NO_EVIDENCE,
        replay=shlex.join(["pytest", *config.args, *subject_words(config)]),
        duration_s=0.0,
        operations=0,
    )


def require_usable(config: pytest.Config) -> None:
    """Raise UsageError for a backend that refuses its options, and for a report that cannot be written.

    Every test would fail of the one, and the whole run would be lost with the other. Tests can be collected where the
    engine of the backend is not installed.
    """
    is_opened = BACKEND.text(config) is not None and not config.option.collectonly
    try:
        for subject in backends_of(config) if is_opened else ():
            require_opened(subject)
    except ConfigurationError as error:
        raise pytest.UsageError(f"{BACKEND.source(config)}: {BACKEND.text(config)}: {error}") from error
    place = REPORT.text(config)
    try:
        if place is not None:
            require_file(Path(place)) if place.endswith(".json") else require_folder(Path(place))
    except ConfigurationError as error:
        raise pytest.UsageError(f"{REPORT.source(config)}: {error}") from error


def _write(record: RunRecord, place: Path, clauses: Mapping[str, Clause]) -> Path:
    """Write the report into a folder, or the record alone if the place is a JSON file."""
    if place.suffix != ".json":
        return write_report(record, place, clauses)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_run(record, place)
    return place


def _read_known_failures(path: str | None) -> tuple[KnownFailure, ...]:
    try:
        return () if path is None else read_known_failures(Path(path))
    except ConfigurationError as error:
        raise pytest.UsageError(str(error)) from error


def _is_part_of_a_suite(config: pytest.Config) -> bool:
    """Whether only a part of a suite was selected, so that tests of a known failure may be missing."""
    narrowing = ("keyword", "markexpr", "deselect", "lf")
    named_tests = any("::" in argument or argument.endswith(".py") for argument in config.args)
    return named_tests or QUICK.switch(config) or any(config.getoption(option, None) for option in narrowing)


NO_SELECTION = Selection((), (), "")


def prepare(item: pytest.Item, known: Sequence[KnownFailure], subject: Sequence[str]) -> None:
    """Add to a test its tags, the reason to skip it, and its known failure.

    `subject`: the words of a command line that name the subject of the run.
    """
    checks = _checks_of(item)
    selection = _select(item, checks) if checks is not None else NO_SELECTION
    lacks = undeclared(checks, adapter_of(item)) if checks is not None else ()
    named = own_adapter(item)
    tags = Tags(
        suite=suite_of(item.path, item.config.rootpath),
        test=_test_id(item),
        clauses=selection.clauses,
        configuration=_configuration(item),
        replay=_replay_command(item, subject),
        lacks=lacks,
    )
    item.user_properties.extend([*tags.to_properties(), *([] if named is None else [named_subject(named)])])
    # Lets `-k LOCK-3` select the tests of a clause, and for a law all tests in which it is checked.
    item.extra_keyword_matches.update(selection.clauses)
    if "driver" in getattr(item, "fixturenames", ()):
        item.extra_keyword_matches.update(CHECKED_AFTER_EACH_VERB)
    if selection.reason:
        item.add_marker(pytest.mark.skip(reason=selection.reason))
    failure = next((failure for failure in known if failure.covers(tags.test, tags.clauses)), None)
    if failure is not None:
        item.stash[KNOWN_FAILURE] = failure.place
        item.add_marker(pytest.mark.xfail(reason=str(failure), strict=not failure.flaky))


def _checks_of(item: pytest.Item) -> Checks | None:
    """The arguments of `@clause`; with `each` for the component of this case."""
    mark = item.get_closest_marker("clause")
    if mark is None:
        return None
    checks: Checks = mark.args[0]
    return checks.for_component(str(_parameters(item)["component"])) if checks.each else checks


def _parameters(item: pytest.Item) -> Mapping[str, object]:
    return item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}


def _select(item: pytest.Item, checks: Checks) -> Selection:
    # A test with one of these parameters was parametrized with fitting values at collection.
    if not {"config", "backend"}.isdisjoint(getattr(item, "fixturenames", ())):
        return Selection((), checks.clauses, "")
    return select_clauses(checks, adapter_of(item))


def _test_id(item: pytest.Item) -> str:
    return f"{place_in_suite(item.path, item.config.rootpath).as_posix()}::{_name(item)}"


def _name(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]


def _configuration(item: pytest.Item) -> str:
    parameters = _parameters(item)
    config, backend, mesh = parameters.get("config"), parameters.get("backend"), parameters.get("mesh")
    if isinstance(backend, BackendSubject):
        return f"storage/{backend.name}"
    if isinstance(mesh, Mesh):
        return f"ranks/{mesh.name}/{parameters.get('transport')}"
    return config.name if isinstance(config, CacheConfig) else ""


def _replay_command(item: pytest.Item, subject: Sequence[str]) -> str:
    path = _relative(item.path, item.config.invocation_params.dir)
    return shlex.join(["pytest", f"{path}::{_name(item)}", *subject])


@cache
def _relative(path: Path, folder: Path) -> str:
    return os.path.relpath(path, folder)


def record_of(
    config: pytest.Config,
    started: datetime,
    executions: Sequence[Execution],
    identity: Identity,
    subjects: Collection[str] = ("",),
) -> RunRecord:
    """The record of a finished run. `started`: in UTC. `subjects`: as in the tags of its tests, if there are any."""
    is_of_run = not subjects or "" in subjects
    implementation, profile, capabilities = identity if is_of_run else _own_subject(sorted(subjects))
    gpus = gpu_names() if parts_run(executions, CONTRACT, implementation) else ""
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        versions=VERSIONS,
        implementation=implementation,
        started=started.isoformat(timespec="seconds"),
        environment={**_environment(config), GPU: gpus or NO_GPU, **({DRIVER: driver()} if gpus else {})},
        profile=profile,
        capabilities=capabilities,
        executions=tuple(executions),
    )


def identity_of(config: pytest.Config) -> Identity:
    """Who the subject of a run is; a backend declares no capabilities."""
    backend = BACKEND.text(config)
    if backend is not None and adapter_path(config) == DEFAULT_ADAPTER:
        return backend, NO_PROFILE, ()
    subject = subject_of(config)
    capabilities = tuple(sorted(capability.name for capability in subject.adapter.capabilities))
    name = subject.path if backend is None else f"{subject.path} and {backend}"
    return name, subject.adapter.profile, capabilities


def _own_subject(subjects: Sequence[str]) -> Identity:
    """The same where each test is of a class with an adapter of its own, which this process need not have imported."""
    return ", ".join(subjects), NO_PROFILE, ()


def _environment(config: pytest.Config) -> Mapping[str, str]:
    variables = (f"{name}={shlex.quote(value)}" for name, value in assignments().items())
    return {
        "command": " ".join([*variables, shlex.join(["pytest", *config.invocation_params.args])]),
        "hicache": __version__,
        **({COMMIT: found} if (found := commit()) else {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": str(os.cpu_count()),
        **dict(_versions()),
    }


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue


ROOT = Path(__file__).parents[3]


def commit() -> str:
    """The commit in 40 digits, with `-dirty` if files differ from it; empty outside of a checkout or without git."""
    if not (ROOT / ".git").exists():
        return ""
    words = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True)  # noqa: S603 - no word is given from outside
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


MAX_REPEATED_S = 10.0
"""A test that took longer is not repeated. Those are the searches of Hypothesis, which repeats an example itself."""

MAX_REPEATED = 3
"""Tests of one cause that one process repeats. A cause with many tests is not flaky."""


class Repetition:
    """The repetitions of one process. `is_on`: they are asked for."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._repeated: Counter[tuple[str, ...]] = Counter()

    def run(self, item: pytest.Item, following: pytest.Item | None) -> bool | None:
        """Run a test, and once more if it failed. None, so that pytest runs it, if repetitions are off.

        The reports are those of the first time. The failure stays one; if the test then passes, it is of the cause
        FLAKY. `following`: the test after it.
        """
        if not self._is_on:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = _run(item, following)
        failed = [report for report in reports if report.failed]
        if failed and self._takes(failed) and not any(report.failed for report in _again(item, following)):
            for report in failed:
                report.user_properties.append(to_property([FLAKY]))
        for report in reports:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def _takes(self, failed: Sequence[pytest.TestReport]) -> bool:
        """Whether a failed test is repeated: it is short, and few others of its cause were."""
        causes = tuple(cause for report in failed for cause in read_causes(report.user_properties))
        self._repeated[causes] += 1
        is_short = sum(report.duration for report in failed) <= MAX_REPEATED_S
        return is_short and FLAKY not in causes and self._repeated[causes] <= MAX_REPEATED


def _again(item: pytest.Item, following: pytest.Item | None) -> Sequence[pytest.TestReport]:
    """The reports of a repetition, with new fixtures of the test."""
    if isinstance(item, pytest.Function):
        item._initrequest()  # noqa: SLF001 - pytest has no public way; its plugins that repeat tests do this
    return _run(item, following)


def _run(item: pytest.Item, following: pytest.Item | None) -> list[pytest.TestReport]:
    """The reports of setup, call and teardown, which are not yet published."""
    runner = item.config.pluginmanager.get_plugin("runner")
    assert runner is not None, "pytest's own plugin runs the tests"
    reports: list[pytest.TestReport] = runner.runtestprotocol(item, log=False, nextitem=following)
    return reports
