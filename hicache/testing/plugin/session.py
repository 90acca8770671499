"""SuiteSession: one run of the suites, from the collected tests to its result and its report."""

from __future__ import annotations

import json
import os
import platform
import shlex
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from hicache import __version__
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.contract import CONTRACT, Checks, Clause
from hicache.testing.laws import CHECKED_AFTER_EACH_VERB
from hicache.testing.levels import Level
from hicache.testing.plugin.backends import backends_of, contract_of
from hicache.testing.plugin.baseline import Baseline, read_baseline
from hicache.testing.plugin.causes import CRASHED as DIED
from hicache.testing.plugin.causes import FLAKY, OUTDATED, causes_of, members, read_causes, to_property
from hicache.testing.plugin.commit import commit
from hicache.testing.plugin.devices import driver, gpu_names
from hicache.testing.plugin.evidence import CALLED, evidence
from hicache.testing.plugin.known_failures import KnownFailure, narrower, outdated, read_known_failures, renamed
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
from hicache.testing.plugin.repetition import Repetition
from hicache.testing.plugin.selection import (
    Selection,
    adapter_of,
    has_subject,
    own_adapter,
    select_clauses,
    subject_of,
    undeclared,
)
from hicache.testing.plugin.stash import KNOWN_FAILURE
from hicache.testing.plugin.tags import (
    CLAUSE_ID,
    COLLECTIVES,
    EVIDENCE,
    OPERATIONS,
    PROCESSES,
    Tags,
    has_driver,
    named_subject,
    place_in_suite,
    read_tags,
    suite_of,
)
from hicache.testing.plugin.versions import VERSIONS
from hicache.testing.plugin.workers import IDENTITY, LEFT_THREADS, Identity, Workers
from hicache.testing.processes import left_threads
from hicache.testing.ranks.outcome import RanksFailedError
from hicache.testing.ranks.world import Mesh
from hicache.testing.report import leaving_out, write_report, write_run
from hicache.testing.report.coverage import LEVEL_OF_TIER, applying_clauses
from hicache.testing.report.failure_text import failure_parts
from hicache.testing.report.gpu import DRIVER, GPU, NO_GPU, parts_run
from hicache.testing.report.matrix import overview
from hicache.testing.report.redaction import without_secrets
from hicache.testing.report.run import (
    COMMIT,
    NO_EVIDENCE,
    NO_PROFILE,
    SCHEMA_VERSION,
    Evidence,
    Execution,
    Outcome,
    RunRecord,
    Step,
    counted,
)
from hicache.testing.report.targets import require_file, require_folder
from hicache.testing.storage.subject import BackendSubject, require_opened

NOTHING_VERIFIED = "no test of any clause was executed: nothing was verified"


class SuiteSession:
    """One run. Raises UsageError when the adapter, the backend or the known failures cannot be read.

    Also for `-k` with the id of a clause that the contract does not have: it would select nothing, after a while.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.journal = Journal()
        self.workers = Workers(config)
        self._config = config
        self._started = datetime.now(timezone.utc)
        self.known = _read_known_failures(KNOWN_FAILURES.text(config))
        self.repetition = Repetition(is_on=REPEAT.switch(config) and not config.getoption("reruns", None))
        self._tally = Tally((), CONTRACT, ())
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
        self._tally = Tally(executions, contract, self._applying(executions, contract))
        problems = list(self._problems())
        if problems and session.exitstatus == pytest.ExitCode.OK:
            nothing = problems == [NOTHING_VERIFIED]
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED if nothing else pytest.ExitCode.TESTS_FAILED
        told = [self._warning] if self._warning else []
        told += self.baseline.summary(executions) if self.baseline is not None else []
        self._lines = [
            *self._tally.summary(),
            *told,
            *renamed(self.known),
            *narrower(self.known, executions),
            *(f"ERROR: {problem}" for problem in problems),
        ]
        place = REPORT.text(self._config)
        if place is not None:
            identity = self.workers.identity or identity_of(self._config)
            record = record_of(self._config, self._started, executions, identity, self.journal.subjects())
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
    mark = item.get_closest_marker("clause")
    selection = _select(item, mark.args[0]) if mark is not None else NO_SELECTION
    lacks = undeclared(mark.args[0], adapter_of(item)) if mark is not None else ()
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
        item.add_marker(pytest.mark.xfail(reason=str(failure), strict=True))


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
    parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
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


WORST_FIRST = (Outcome.FAILED, Outcome.KNOWN_FAILURE, Outcome.SKIPPED, Outcome.PASSED)

RERUN = "rerun"
"""The outcome that pytest-rerunfailures gives a failure after which the test is run again."""

CRASHED = "???"
"""The phase of the report for a test whose worker process died."""


class Journal:
    """The test reports received so far, from this process or from workers."""

    def __init__(self) -> None:
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def take(self, report: pytest.TestReport) -> None:
        """Record the report of one phase of a test, unless the test has no tags."""
        if report.when == CRASHED or read_tags(report.user_properties) is not None:
            self._reports.setdefault(report.nodeid, []).append(report)

    def subjects(self) -> set[str]:
        """The adapters of the tests, as in their tags. A test of a project that has named none is not counted."""
        every = (read_tags(_properties(reports)) for reports in self._reports.values())
        return {tags.subject for tags in every if tags is not None and (tags.suite or tags.clauses or tags.subject)}

    def executions(self) -> tuple[Execution, ...]:
        """One execution for each test, in the order in which they began."""
        return tuple(_execution(node_id, reports) for node_id, reports in self._reports.items())


def _properties(reports: Sequence[pytest.TestReport]) -> list[tuple[str, object]]:
    return [one for report in reports for one in report.user_properties]


def _execution(node_id: str, reports: Sequence[pytest.TestReport]) -> Execution:
    properties = _properties(reports)
    tags = read_tags(properties) or Tags("", node_id, (), "", f"pytest '{node_id}'", ())
    # pytest-rerunfailures reports a failed attempt so, before it runs the test again.
    again = next((report for report in reports if str(report.outcome) == RERUN), None)
    if again is not None and not any(report.failed for report in reports):
        again.outcome = "failed"
        properties.append(to_property([FLAKY]))
    decisive = min(reports, key=lambda report: WORST_FIRST.index(_outcome(report)))
    return Execution(
        node_id=tags.test,
        suite=tags.suite,
        clauses=tags.clauses,
        configuration=tags.configuration,
        outcome=_outcome(decisive),
        causes=() if _outcome(decisive) in (Outcome.PASSED, Outcome.SKIPPED) else _causes(properties),
        reason=_reason(decisive),
        lacks=tags.lacks,
        evidence=_evidence(properties),
        replay=tags.replay,
        duration_s=sum(report.duration for report in reports),
        operations=_sum(OPERATIONS, reports[-1]),
        processes=_sum(PROCESSES, reports[-1]),
        collectives=_words(COLLECTIVES, reports[-1]),
    )


def _sum(name: str, report: pytest.TestReport) -> int:
    return sum(int(str(value)) for own, value in report.user_properties if own == name)


def _words(name: str, report: pytest.TestReport) -> tuple[str, ...]:
    return tuple(word for own, value in report.user_properties if own == name for word in str(value).split())


def _causes(properties: Iterable[tuple[str, object]]) -> tuple[str, ...]:
    """The causes of a failed test. A flaky test has none: the next run may not find it."""
    found = tuple(dict.fromkeys(read_causes(properties)))
    return (FLAKY,) if FLAKY in found else found or (DIED,)


def _outcome(report: pytest.TestReport) -> Outcome:
    if report.failed:
        return Outcome.FAILED
    if report.skipped:
        return Outcome.KNOWN_FAILURE if hasattr(report, "wasxfail") else Outcome.SKIPPED
    return Outcome.PASSED


def _reason(report: pytest.TestReport) -> str:
    if report.passed or report.outcome == RERUN:
        return ""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    message = _message(report)
    return f"{report.wasxfail}\n{message}" if hasattr(report, "wasxfail") else message


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message if crash is not None else str(report.longrepr)


def _evidence(properties: Iterable[tuple[str, object]]) -> Evidence:
    for name, value in properties:
        if name == EVIDENCE:
            known = json.loads(str(value))
            return Evidence(**known | {"steps": tuple(Step(**step) for step in known["steps"])})
    return NO_EVIDENCE


def explain(report: pytest.TestReport, raised: BaseException, clauses: Sequence[str]) -> None:
    """Add the causes and the evidence of a failure to its report. `clauses`: those that the test names.

    Hypothesis raises several failures of one test as a group. The group's message is replaced by the messages of all
    its exceptions, with their notes, which hold the steps.
    """
    report.user_properties.append(to_property(causes_of(raised, clauses)))
    # The cache of a rank was in another process, which sent its evidence.
    found = raised.evidence if isinstance(raised, RanksFailedError) else evidence(CALLED.record(), raised)
    report.user_properties.append((EVIDENCE, json.dumps(asdict(found))))
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None and hasattr(raised, "exceptions"):
        failures = ["".join(traceback.format_exception_only(type(one), one)).rstrip() for one in members(raised)]
        crash.message = "\n\n".join([f"{len(failures)} failures in one test", *failures])


def shown(report: pytest.TestReport) -> list[tuple[str, str]]:
    """The sections of a failed test in the terminal: the clause, the last calls and the tree."""
    # Before lines are broken: a secret in two parts is not recognised.
    parts = failure_parts(without_secrets(_execution(report.nodeid, [report])), CONTRACT)
    return [(part.title, "\n".join(part.lines)) for part in parts if part.lines]


def forgive(report: pytest.TestReport, known: Sequence[KnownFailure]) -> None:
    """Turn a failure into a known one, if an entry names each clause that it found broken."""
    causes = read_causes(report.user_properties)
    entries = [next((entry for entry in known if entry.id == cause), None) for cause in causes]
    if causes and None not in entries:
        report.outcome = "skipped"
        report.wasxfail = f"reason: {entries[0]}"


def excuse(report: pytest.TestReport, baseline: Baseline | None) -> None:
    """Turn a failure into a known one, if the baseline has it."""
    tags = read_tags(report.user_properties)
    if baseline is None or tags is None or not report.failed:
        return
    if baseline.has(tags.test, _causes(report.user_properties)):
        report.outcome = "skipped"
        report.wasxfail = f"reason: {baseline.reason}"


def outdate(report: pytest.TestReport, place: str) -> None:
    """Say that a test passes although it is listed as a known failure."""
    report.longrepr = outdated(place)
    report.user_properties.append(to_property([OUTDATED]))


class Tally:
    """Counts over the executions of one run. `contract`: the clauses that it is about. `applying`: to its subject."""

    def __init__(
        self, executions: Sequence[Execution], contract: Mapping[str, Clause], applying: Sequence[Clause]
    ) -> None:
        # Tests of a project that name no clause are about none, and so is a run of such tests alone.
        is_about_clauses = not executions or any(one.suite or one.clauses for one in executions)
        self._executions = executions
        self._contract = contract if is_about_clauses else {}
        self._applying = applying if is_about_clauses else ()
        self._executed = [one for one in executions if one.outcome is not Outcome.SKIPPED]
        self._outcomes = Counter(one.outcome for one in executions)

    def line(self) -> str:
        """The numbers of tests by outcome, and how many of the clauses that apply were not executed."""
        missing = len(self.not_executed())
        counts = {
            "passed": self._outcomes[Outcome.PASSED],
            "failed": self._outcomes[Outcome.FAILED],
            "known to fail": self._outcomes[Outcome.KNOWN_FAILURE],
            "skipped": self._outcomes[Outcome.SKIPPED],
            **({f"of {counted(len(self._applying), 'clause')} not executed": missing} if self._contract else {}),
            "flaky": len(self.flaky()),
        }
        kept = {name: count for name, count in counts.items() if count or name not in ("known to fail", "flaky")}
        return "hicache: " + ", ".join(f"{count} {name}" for name, count in kept.items())

    def summary(self) -> Iterator[str]:
        """What was called and started; why tests were skipped, most frequent reason first; what was not executed."""
        verbs = sum(one.operations for one in self._executions)
        processes = sum(one.processes for one in self._executions)
        called, started = counted(verbs, "verb"), counted(processes, "process")
        yield f"{counted(len(self._executed), 'test')} called {called} and started {started}"
        skipped = Counter(one.reason for one in self._executions if one.outcome is Outcome.SKIPPED)
        for reason, count in skipped.most_common():
            yield f"{count} skipped: {reason}"
        of_level = Counter(map(_level_of, self._applying))
        for level, missing in Counter(map(_level_of, self.not_executed())).items():
            yield f"{missing} of {counted(of_level[level], f'{level} clause')} not executed"
        if others := len(self._contract) - len(self._applying):
            yield f"{counted(others, 'other clause')} of the contract do not apply"

    def not_executed(self) -> tuple[Clause, ...]:
        """The clauses that apply and that no test executed, in the order of the contract."""
        return tuple(clause for clause in self._applying if clause.id not in self._executed_clauses())

    def flaky(self) -> list[str]:
        """The tests that failed and passed."""
        return [one.node_id for one in self._executed if one.outcome is Outcome.FAILED and FLAKY in one.causes]

    def verified_nothing(self) -> bool:
        """Whether a run that is about clauses executed none. One of the benchmarks alone is not."""
        measured = {one.suite for one in self._executed} == {"benchmarks"}
        return bool(self._contract) and not measured and self._executed_clauses().isdisjoint(self._contract)

    def _executed_clauses(self) -> set[str]:
        return {clause_id for one in self._executed for clause_id in one.clauses}

    def unmatched(self, known: Sequence[KnownFailure]) -> Iterator[KnownFailure]:
        """The known failures that match no executed test, of the suites that were executed."""
        suites = {one.suite for one in self._executed}
        for failure in known:
            covered = any(failure.covers(one.node_id, (*one.clauses, *one.causes)) for one in self._executed)
            if failure.suite in suites and not covered:
                yield failure


def _level_of(clause: Clause) -> str:
    """The level of a clause; the tier of one that belongs to no level."""
    return LEVEL_OF_TIER[clause.tier].value if clause.tier in LEVEL_OF_TIER else clause.tier


PACKAGES = ("numpy", "torch", "pytest", "hypothesis", "sglang")


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
