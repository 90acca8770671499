"""Matrix: clauses by configurations, with the status of each; Overview: all that the pages show of a run."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hicache.errors import ConfigurationError
from hicache.testing.contract import TIERS, Clause
from hicache.testing.report.run import Execution, Outcome, RunRecord, counted, first_line


class Status(str, Enum):
    """The status of a clause, in one configuration or in all.

    FAILED: a test found it broken, also by a law that the test does not name. UNDECIDED: a test of it ended early,
    because of another clause or an error, and no test found it broken.
    """

    PASSED = "passed"
    PASSED_IN_PART = "passed in part"
    FAILED = "failed"
    KNOWN_FAILURE = "known failure"
    UNDECIDED = "undecided"
    SKIPPED = "skipped"
    NOT_EXECUTED = "not executed"


SYMBOLS: Mapping[Status, str] = {
    Status.PASSED: "✓",
    Status.PASSED_IN_PART: "◐",
    Status.FAILED: "✗",
    Status.KNOWN_FAILURE: "!",
    Status.UNDECIDED: "?",
    Status.SKIPPED: "-",
    Status.NOT_EXECUTED: "·",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One clause in one configuration. `results`: the number of executions by what they say of the clause."""

    status: Status
    results: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class Row:
    """One clause. `cells`: one for each column. `status`: over all columns in which a test ran."""

    clause: Clause
    status: Status
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """The clauses whose ids have the same part before the number."""

    name: str
    rows: tuple[Row, ...]
    counts: Mapping[Status, int]


@dataclass(frozen=True, slots=True)
class Matrix:
    """All clauses, in the order of the contract, by all configurations that were executed."""

    configurations: tuple[str, ...]
    sections: tuple[Section, ...]
    counts: Mapping[Status, int]


def build_matrix(record: RunRecord, clauses: Mapping[str, Clause]) -> Matrix:
    """Sort the executions into cells. Raises ConfigurationError for a clause that is not among `clauses`."""
    cells = _results_by_cell(record.executions, clauses)
    configurations = tuple(sorted({configuration for _, configuration in cells}, key=_natural_order))
    rows = [_row(clause, configurations, cells) for clause in clauses.values()]
    names = dict.fromkeys(section_of(row.clause.id) for row in rows)
    sections = [_section(name, [row for row in rows if section_of(row.clause.id) == name]) for name in names]
    return Matrix(configurations, tuple(sections), _counts(rows))


def section_of(clause_id: str) -> str:
    """The section of a clause: `LOCK` for `LOCK-3`."""
    return clause_id.partition("-")[0]


def _results_by_cell(
    executions: Iterable[Execution], clauses: Mapping[str, Clause]
) -> dict[tuple[str, str], list[Status]]:
    cells: dict[tuple[str, str], list[Status]] = {}
    for execution in executions:
        broken = [cause for cause in execution.causes if cause in clauses]
        for clause_id in dict.fromkeys((*execution.clauses, *broken)):
            if clause_id not in clauses:
                raise ConfigurationError(
                    f"{execution.node_id} names clause {clause_id!r}, which is not in the contract"
                )
            cells.setdefault((clause_id, execution.configuration), []).append(_result(execution, clause_id))
    return cells


def _result(execution: Execution, clause_id: str) -> Status:
    """What one execution says of one clause."""
    failed = {Outcome.FAILED: Status.FAILED, Outcome.KNOWN_FAILURE: Status.KNOWN_FAILURE}
    if execution.outcome in failed:
        return failed[execution.outcome] if clause_id in execution.causes else Status.UNDECIDED
    return Status.PASSED if execution.outcome is Outcome.PASSED else Status.SKIPPED


def _row(clause: Clause, configurations: Sequence[str], results: Mapping[tuple[str, str], Sequence[Status]]) -> Row:
    by_cell = [results.get((clause.id, configuration), ()) for configuration in configurations]
    # A configuration that this machine cannot open does not change the status of a clause that ran in others.
    opened = [cell for name, cell in zip(configurations, by_cell, strict=True) if not _is_closed(name, cell)]
    status = _status([result for cell in (opened if any(opened) else by_cell) for result in cell])
    return Row(clause, status, tuple(_cell(results) for results in by_cell))


def _is_closed(configuration: str, results: Sequence[Status]) -> bool:
    return bool(configuration) and all(result is Status.SKIPPED for result in results)


def _cell(results: Sequence[Status]) -> Cell:
    return Cell(_status(results), Counter(results))


def _status(results: Iterable[Status]) -> Status:
    """The worst result. PASSED: every execution passed. PASSED_IN_PART: some passed and the others were skipped."""
    found = set(results)
    for worst in (Status.FAILED, Status.KNOWN_FAILURE, Status.UNDECIDED):
        if worst in found:
            return worst
    if Status.SKIPPED in found:
        return Status.PASSED_IN_PART if Status.PASSED in found else Status.SKIPPED
    return Status.PASSED if found else Status.NOT_EXECUTED


def _section(name: str, rows: Sequence[Row]) -> Section:
    return Section(name, tuple(rows), _counts(rows))


def _counts(rows: Iterable[Row]) -> Mapping[Status, int]:
    counted = Counter(row.status for row in rows)
    return {status: counted[status] for status in Status}


def _natural_order(configuration: str) -> list[list[tuple[str, int]]]:
    """Sort key: fewer components first, and page2 before page16."""
    return [
        [(word, int(number or 0)) for word, number in re.findall(r"([^\d+]+)(\d*)", part)]
        for part in configuration.split("/")
    ]


@dataclass(frozen=True, slots=True)
class ReasonGroup:
    """Skipped executions or known failures with the same reason, and the clauses of their tests."""

    reason: str
    executions: int
    clauses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause of failures: a clause, or an error.

    `failures`: those that found it, the smallest example first: the one with the fewest calls, and of those without
    steps the one with the shortest message; then those of `also`. `about`: where most tests that found it do not name
    it, as for an error or a law: the clauses that these tests are about, the most concerned first. `also`: other causes
    that may follow from it.
    """

    name: str
    clause: Clause | None
    failures: tuple[Execution, ...]
    about: tuple[str, ...]
    also: tuple[str, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """The clauses that a reader is pointed to: the broken one, and those that the tests are about."""
        return self.about if self.clause is None else (self.name, *self.about)

    @property
    def tests(self) -> str:
        """How many tests found it, and of which clauses they are: all of them, or some."""
        count = counted(len(self.failures), "test")
        if not self.about:
            return count
        is_of_all = not any(set(self.about).isdisjoint(one.clauses) for one in self.failures)
        return f"{count}{'' if is_of_all else ', some'} of {', '.join(self.about)}"


@dataclass(frozen=True, slots=True)
class Overview:
    """What the pages show of a run, computed once.

    `outcomes`: number of executions by outcome. `causes`: of the failures, the most frequent first. `known_to_fail`:
    the known failures; `known_failures`: the same, grouped by reason. `beyond`: what passed beyond the contract, by
    reason. `not_executed`: clauses without an execution, by tier. `operations`: calls of the cache under test.
    `test_s`: seconds in tests, summed over parallel workers.
    """

    record: RunRecord
    matrix: Matrix
    outcomes: Mapping[Outcome, int]
    failures: tuple[Execution, ...]
    causes: tuple[Cause, ...]
    known_to_fail: tuple[Execution, ...]
    known_failures: tuple[ReasonGroup, ...]
    beyond: tuple[ReasonGroup, ...]
    skips: tuple[ReasonGroup, ...]
    not_executed: Mapping[str, tuple[Clause, ...]]
    operations: int
    test_s: float

    @property
    def verdict(self) -> Status:
        """FAILED if a test failed, NOT_EXECUTED if no test passed, and PASSED otherwise."""
        if self.outcomes[Outcome.FAILED]:
            return Status.FAILED
        return Status.PASSED if self.outcomes[Outcome.PASSED] else Status.NOT_EXECUTED


def overview(record: RunRecord, clauses: Mapping[str, Clause]) -> Overview:
    """Compute the overview of a run. Raises ConfigurationError for a clause that is not among `clauses`."""
    matrix = build_matrix(record, clauses)
    outcomes = Counter(execution.outcome for execution in record.executions)
    known = _with_outcome(record, Outcome.KNOWN_FAILURE)
    return Overview(
        record=record,
        matrix=matrix,
        outcomes={outcome: outcomes[outcome] for outcome in Outcome},
        failures=_with_outcome(record, Outcome.FAILED),
        causes=causes_of(record.executions, clauses),
        known_to_fail=known,
        known_failures=_groups(known),
        beyond=_groups([one for one in record.executions if one.is_beyond]),
        skips=_groups(_with_outcome(record, Outcome.SKIPPED)),
        not_executed=_not_executed(matrix),
        operations=sum(execution.operations for execution in record.executions),
        test_s=sum(execution.duration_s for execution in record.executions),
    )


def _with_outcome(record: RunRecord, outcome: Outcome) -> tuple[Execution, ...]:
    return tuple(execution for execution in record.executions if execution.outcome is outcome)


_MAX_ABOUT = 2


def causes_of(executions: Sequence[Execution], clauses: Mapping[str, Clause]) -> tuple[Cause, ...]:
    """Group failures by cause, the most frequent cause first. A failure with two causes is in both groups.

    Of equally frequent ones that clause comes first of which a larger share of tests found it broken.

    A cause joins a more frequent one, a clause, if each test that found it is also a test of that clause: such a test
    may have met the other defect first. It is named there, and is a cause of its own once that defect is mended. An
    error joins one of its type that was raised at the same line below another verb.
    """
    found: dict[str, list[Execution]] = {}
    for failure in executions:
        for name in failure.causes if failure.outcome is Outcome.FAILED else ():
            found.setdefault(name, []).append(failure)
    ran = _weights(one for one in executions if one.outcome is not Outcome.SKIPPED)
    joined: dict[str, list[str]] = {}
    for name in sorted(found, key=lambda name: (-len(found[name]), ran.get(name, math.inf))):
        root = next((one for one in joined if _explains(one, name, found, clauses)), None)
        joined.setdefault(root or name, []).extend([name] if root else [])
    causes = [_cause(name, also, found, clauses, ran) for name, also in joined.items()]
    return tuple(sorted(causes, key=lambda cause: -len(cause.failures)))


def _weights(executions: Iterable[Execution]) -> dict[str, float]:
    """How much the executions say of each clause: a test of many clauses says less of each than a test of one."""
    weights: dict[str, float] = {}
    for one in executions:
        for clause in one.clauses:
            weights[clause] = weights.get(clause, 0.0) + 1 / len(one.clauses)
    return weights


def _explains(cause: str, other: str, found: Mapping[str, Sequence[Execution]], clauses: Mapping[str, Clause]) -> bool:
    """Whether another cause may follow from a cause."""
    if cause in clauses:
        return all(cause in (*one.clauses, *one.causes) for one in found[other])
    is_one_type = other not in clauses and cause.partition(" in ")[0] == other.partition(" in ")[0]
    return is_one_type and not _lines(found[cause]).isdisjoint(_lines(found[other]))


def _lines(failures: Iterable[Execution]) -> set[str]:
    """Where errors were raised: the last frame of each traceback."""
    frames = [re.findall(r'^  File "[^"]*", line \d+', one.evidence.traceback, re.MULTILINE) for one in failures]
    return {one[-1] for one in frames if one}


def _cause(
    name: str,
    also: Sequence[str],
    found: Mapping[str, Sequence[Execution]],
    clauses: Mapping[str, Clause],
    ran: Mapping[str, float],
) -> Cause:
    groups = [sorted(found[one], key=_size) for one in (name, *also)]
    failures = tuple({one.node_id: one for group in groups for one in group}.values())
    of_others = [one for one in failures if name not in one.clauses]
    tests = _weights(of_others if 2 * len(of_others) > len(failures) else ())
    # The clause of which the largest share of tests failed is concerned most, not the one with the most tests.
    nearest = sorted(tests, key=lambda clause: (-tests[clause] / ran[clause], -tests[clause]))[:_MAX_ABOUT]
    return Cause(name, clauses.get(name), failures, tuple(nearest), tuple(also))


def _size(failure: Execution) -> tuple[int, ...]:
    """Sort key: how much there is to read of a failure. The calls of a search are those of all its examples."""
    calls = (0, failure.operations) if failure.evidence.steps else (1,)
    return *calls, len(failure.reason.splitlines()), len(failure.reason), len(failure.replay)


def _groups(executions: Sequence[Execution]) -> tuple[ReasonGroup, ...]:
    """Group executions by reason, the most frequent reason first."""
    by_reason: dict[str, list[Execution]] = {}
    for execution in executions:
        by_reason.setdefault(first_line(execution.reason) or "no reason given", []).append(execution)
    groups = [
        ReasonGroup(
            reason, len(group), tuple(dict.fromkeys(clause for execution in group for clause in execution.clauses))
        )
        for reason, group in by_reason.items()
    ]
    return tuple(sorted(groups, key=lambda group: -group.executions))


def _not_executed(matrix: Matrix) -> dict[str, tuple[Clause, ...]]:
    rows = [row for section in matrix.sections for row in section.rows]
    clauses = [row.clause for row in rows if row.status is Status.NOT_EXECUTED]
    tiers = sorted({clause.tier for clause in clauses}, key=TIERS.index)
    return {tier: tuple(clause for clause in clauses if clause.tier == tier) for tier in tiers}
