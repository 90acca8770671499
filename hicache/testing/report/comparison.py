"""Comparison: runs of several implementations side by side, with the failures of each and what it did not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache.errors import ConfigurationError
from hicache.testing.contract import Clause
from hicache.testing.report.matrix import Cell, Overview, Row, Status, overview, section_of
from hicache.testing.report.run import Execution, Outcome, RunRecord, first_line


@dataclass(frozen=True, slots=True)
class Finding:
    """A test that fails or is known to fail, in one or several configurations, for one reason.

    `shortest`: the failure with the shortest message. `clauses`: those that it found broken. `errors`: those that ended
    it.
    """

    status: Status
    test: str
    shortest: Execution
    clauses: tuple[str, ...]
    errors: tuple[str, ...]
    configurations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Implementation:
    """One implementation. `name`: unique in the comparison. `file`: of its run. `findings`: known failures last."""

    name: str
    file: str
    view: Overview
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """The verdict on its run; KNOWN_FAILURE if all its failures are known."""
        worst = {finding.status for finding in self.findings}
        return Status.KNOWN_FAILURE if worst == {Status.KNOWN_FAILURE} else self.view.verdict


DIFFERS = "differs"
"""The group of the clauses that pass for one implementation and fail for another."""

WORST_FIRST = (
    *(Status.FAILED, Status.KNOWN_FAILURE, Status.UNDECIDED, Status.SKIPPED, Status.PASSED_IN_PART),
    *(Status.NOT_EXECUTED, Status.PASSED),
)


@dataclass(frozen=True, slots=True)
class ClauseResult:
    """The status of a clause for one implementation. `cell`: over all configurations.

    `finding`: the number, from 1, of the first finding for the clause; 0 if there is none.
    """

    cell: Cell
    finding: int


@dataclass(frozen=True, slots=True)
class ComparedClause:
    """One clause and its result for each implementation."""

    clause: Clause
    results: tuple[ClauseResult, ...]

    @property
    def differs(self) -> bool:
        """Whether it passes for one implementation and fails for another."""
        statuses = {result.cell.status for result in self.results}
        passes, fails = (Status.PASSED, Status.PASSED_IN_PART), (Status.FAILED, Status.KNOWN_FAILURE)
        return not statuses.isdisjoint(passes) and not statuses.isdisjoint(fails)

    @property
    def group(self) -> str:
        """The group under which filters put it: DIFFERS, or its worst status."""
        statuses = {result.cell.status for result in self.results}
        return DIFFERS if self.differs else next(one for one in WORST_FIRST if one in statuses).value


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs. `sections`: the clauses that any run executed or skipped, by section."""

    implementations: tuple[Implementation, ...]
    sections: Mapping[str, tuple[ComparedClause, ...]]

    @property
    def clauses(self) -> tuple[ComparedClause, ...]:
        """The clauses of all sections."""
        return tuple(one for section in self.sections.values() for one in section)


def compare(runs: Mapping[str, RunRecord], clauses: Mapping[str, Clause]) -> Comparison:
    """Compare runs. `runs`: each by its file.

    Raises ConfigurationError with the file for a clause that is not among `clauses`.
    """
    names = _names(runs)
    implementations = tuple(
        _implementation(names[file], file, _overview(file, record, clauses)) for file, record in runs.items()
    )
    compared = [_compared(rows, implementations) for rows in zip(*map(_rows, implementations), strict=True)]
    sections: dict[str, list[ComparedClause]] = {}
    for one in compared:
        if any(result.cell.results for result in one.results):
            sections.setdefault(section_of(one.clause.id), []).append(one)
    return Comparison(implementations, {name: tuple(rows) for name, rows in sections.items()})


def difference(comparison: Comparison) -> str:
    """The number of clauses that differ, in one sentence."""
    differing = sum(one.differs for one in comparison.clauses)
    return f"Clauses that pass for one implementation and fail for another: {differing} of {len(comparison.clauses)}"


def contract_difference(comparison: Comparison) -> str:
    """The version of the contract that each run was made with, in one sentence; empty when it is the same for all."""
    versions = {one.name: one.view.record.versions.contract for one in comparison.implementations}
    if len(set(versions.values())) == 1:
        return ""
    listed = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"The runs have different versions of the contract, so a clause can ask for something else in each: {listed}"


def _names(runs: Mapping[str, RunRecord]) -> dict[str, str]:
    """Unique names: the class names, if necessary with the folders of the runs, or else with the files."""
    classes = {file: record.implementation.rpartition(":")[2] for file, record in runs.items()}
    with_folders = {file: f"{name} ({Path(file).parent.name or file})" for file, name in classes.items()}
    shorter = (names for names in (classes, with_folders) if len(set(names.values())) == len(names))
    return next(shorter, {file: f"{name} ({file})" for file, name in classes.items()})


def _overview(file: str, record: RunRecord, clauses: Mapping[str, Clause]) -> Overview:
    try:
        return overview(record, clauses)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def _implementation(name: str, file: str, view: Overview) -> Implementation:
    groups: dict[tuple[str, str], list[Execution]] = {}
    for failure in (*view.failures, *view.known_to_fail):
        test = failure.node_id.partition("[")[0]
        known = first_line(failure.reason) if failure.outcome is Outcome.KNOWN_FAILURE else ""
        groups.setdefault((test, known), []).append(failure)
    clauses = [row.clause.id for section in view.matrix.sections for row in section.rows]
    findings = tuple(_finding(test, failures, clauses) for (test, _), failures in groups.items())
    return Implementation(name, file, view, findings)


def _finding(test: str, failures: Sequence[Execution], clauses: Collection[str]) -> Finding:
    shortest = min(failures, key=lambda one: (len(one.reason.splitlines()), len(one.reason), len(one.replay)))
    return Finding(
        status=Status.FAILED if shortest.outcome is Outcome.FAILED else Status.KNOWN_FAILURE,
        test=test,
        shortest=shortest,
        clauses=_distinct(cause for failure in failures for cause in failure.causes if cause in clauses),
        errors=_distinct(cause for failure in failures for cause in failure.causes if cause not in clauses),
        configurations=_distinct(failure.configuration for failure in failures if failure.configuration),
    )


def _rows(implementation: Implementation) -> list[Row]:
    return [row for section in implementation.view.matrix.sections for row in section.rows]


def _compared(rows: Sequence[Row], implementations: Sequence[Implementation]) -> ComparedClause:
    results = [_result(row, implementation.findings) for row, implementation in zip(rows, implementations, strict=True)]
    return ComparedClause(rows[0].clause, tuple(results))


def _result(row: Row, findings: Sequence[Finding]) -> ClauseResult:
    results: Counter[Status] = Counter()
    for cell in row.cells:
        results.update(cell.results)
    numbers = (number for number, finding in enumerate(findings, start=1) if row.clause.id in finding.clauses)
    return ClauseResult(Cell(row.status, results), next(numbers, 0))


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
