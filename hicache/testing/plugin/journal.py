"""The journal of a run: the reports of its tests, one execution for each test, and their counts."""

from __future__ import annotations

import json
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict

import pytest

from hicache.testing.contract import CONTRACT, Clause
from hicache.testing.plugin.failures import (
    CALLED,
    CRASHED,
    FLAKY,
    STALE,
    causes_of,
    evidence,
    members,
    read_causes,
    to_property,
)
from hicache.testing.plugin.known_failures import Baseline, KnownFailure, outcome_of_known, stale_entry
from hicache.testing.plugin.tags import (
    COLLECTIVES,
    EVIDENCE,
    OPERATIONS,
    PROCESSES,
    Tags,
    read_tags,
)
from hicache.testing.plugin.witnesses import PREFIX
from hicache.testing.ranks.outcome import RanksFailedError
from hicache.testing.report.coverage import LEVEL_OF_TIER
from hicache.testing.report.failure_text import failure_parts
from hicache.testing.report.redaction import without_secrets
from hicache.testing.report.run import (
    NO_EVIDENCE,
    WITNESSES,
    Evidence,
    Execution,
    Outcome,
    Step,
    counted,
    flaky_counts,
)

WORST_FIRST = (Outcome.FAILED, Outcome.KNOWN_FAILURE, Outcome.SKIPPED, Outcome.PASSED)

RERUN = "rerun"
"""The outcome that pytest-rerunfailures gives a failure after which the test is run again."""

CRASHED_PHASE = "???"
"""The phase of the report for a test whose worker process died."""


_KIND_OF_REASON = re.compile(
    r".* does not declare \w+|no configuration of this run has|does not apply to the profile \w+"
)
"""The part that many reasons of skipped tests have in common."""


class ReportJournal:
    """The test reports received so far, from this process or from workers."""

    def __init__(self) -> None:
        self._reports: dict[str, list[pytest.TestReport]] = {}

    def take(self, report: pytest.TestReport) -> None:
        """Record the report of one phase of a test, unless the test has no tags."""
        if report.when == CRASHED_PHASE or read_tags(report.user_properties) is not None:
            self._reports.setdefault(report.nodeid, []).append(report)

    def subjects(self) -> set[str]:
        """The adapters of the tests, as in their tags. A test of a project that has named none is not counted."""
        every = (read_tags(_properties(reports)) for reports in self._reports.values())
        return {tags.subject for tags in every if tags is not None and (tags.suite or tags.clauses or tags.subject)}

    def witnesses(self) -> dict[str, str]:
        """How often the tests saw the cache do something, by the names in the environment of a run."""
        last = [reports[-1] for reports in self._reports.values()]
        return {name: str(sum(_sum(f"{PREFIX}{name}", report) for report in last)) for name in WITNESSES}

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
    decisive = min(reports, key=lambda report: (WORST_FIRST.index(_outcome(report)), not _is_listed(report)))
    return Execution(
        node_id=tags.test,
        suite=tags.suite,
        clauses=tags.clauses,
        configuration=tags.configuration,
        outcome=_outcome(decisive),
        causes=_causes(properties) if not decisive.passed and (decisive.failed or _is_listed(decisive)) else (),
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
    return (FLAKY,) if FLAKY in found else found or (CRASHED,)


def _outcome(report: pytest.TestReport) -> Outcome:
    if report.failed:
        return Outcome.FAILED
    if report.skipped:
        return outcome_of_known(str(report.wasxfail)) if _is_listed(report) else Outcome.SKIPPED
    return Outcome.PASSED


def _is_listed(report: pytest.TestReport) -> bool:
    """Whether it is a failure that a list or a baseline has, or a test that passed and is listed as flaky."""
    return hasattr(report, "wasxfail")


def _reason(report: pytest.TestReport) -> str:
    if report.passed or report.outcome == RERUN:
        # Of a test that is listed as flaky.
        return str(getattr(report, "wasxfail", ""))
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    message = _message(report)
    return f"{report.wasxfail}\n{message}" if _is_listed(report) else message


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


def mark_known(report: pytest.TestReport, known: Sequence[KnownFailure]) -> None:
    """Turn a failure into a known one, if an entry names each clause that it found broken."""
    causes = read_causes(report.user_properties)
    entries = [next((entry for entry in known if entry.id == cause), None) for cause in causes]
    if causes and None not in entries:
        report.outcome = "skipped"
        report.wasxfail = f"reason: {entries[0]}"


def mark_failed_before(report: pytest.TestReport, baseline: Baseline | None) -> None:
    """Turn a failure into a known one, if the baseline has it."""
    tags = read_tags(report.user_properties)
    if baseline is None or tags is None or not report.failed:
        return
    if baseline.has(tags.test, _causes(report.user_properties)):
        report.outcome = "skipped"
        report.wasxfail = f"reason: {baseline.reason}"


def mark_obsolete(report: pytest.TestReport, place: str) -> None:
    """Say that a test passes although it is listed as a known failure."""
    report.longrepr = stale_entry(place)
    report.user_properties.append(to_property([STALE]))


_LEFT_OUT = ("of them beyond the contract", "known to fail", "flaky")
"""Counts that are left out of the line of a run where they are 0."""


class RunTally:
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
            "of them beyond the contract": sum(one.is_beyond for one in self._executions),
            "failed": self._outcomes[Outcome.FAILED],
            "known to fail": self._outcomes[Outcome.KNOWN_FAILURE],
            "skipped": self._outcomes[Outcome.SKIPPED],
            **({f"of {counted(len(self._applying), 'clause')} not executed": missing} if self._contract else {}),
            "flaky": len(self.flaky()),
        }
        kept = {name: count for name, count in counts.items() if count or name not in _LEFT_OUT}
        listed = flaky_counts(self._executions)
        texts = [*(f"{count} {name}" for name, count in kept.items()), *([listed] if listed else [])]
        return f"hicache: {', '.join(texts)}"

    def summary(self) -> Iterator[str]:
        """What was called and started; why tests were skipped, most frequent reason first; what was not executed."""
        verbs = sum(one.operations for one in self._executions)
        processes = sum(one.processes for one in self._executions)
        called, started = counted(verbs, "verb"), counted(processes, "process")
        yield f"{counted(len(self._executed), 'test')} called {called} and started {started}"
        skipped = Counter(one.reason for one in self._executions if one.outcome is Outcome.SKIPPED)
        yield from _by_kind(skipped)
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


def _by_kind(skipped: Mapping[str, int]) -> Iterator[str]:
    """A line for each kind of reasons, the most frequent first, with the reason itself where there is one of a kind."""
    kinds: dict[str, Counter[str]] = {}
    for reason, count in skipped.items():
        found = _KIND_OF_REASON.search(reason)
        kinds.setdefault(found[0] if found else reason, Counter())[reason] += count
    for kind, reasons in sorted(kinds.items(), key=lambda one: -one[1].total()):
        several = f"{kind} ... ({len(reasons)} reasons; the report has each)"
        yield f"{reasons.total()} skipped: {several if len(reasons) > 1 else next(iter(reasons))}"


def _level_of(clause: Clause) -> str:
    """The level of a clause; the tier of one that belongs to no level."""
    return LEVEL_OF_TIER[clause.tier].value if clause.tier in LEVEL_OF_TIER else clause.tier
