"""Comparison: several runs side by side, with what each implementation fails and what it did not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache.errors import ConfigurationError
from hicache.testing.contract import Clause
from hicache.testing.report.matrix import Cell, Row, Status, section_of
from hicache.testing.report.overview import Overview, overview
from hicache.testing.report.run import Execution, Outcome, RunRecord
from hicache.testing.report.text import first_line


@dataclass(frozen=True, slots=True)
class Finding:
    """A test that fails, in one configuration or several, or is known to, for one reason.

    `shortest`: the failure that takes the least to tell.
    """

    status: Status
    test: str
    shortest: Execution
    clauses: tuple[str, ...]
    configurations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contender:
    """One implementation. `name`: no other has it. `file`: where its run was read. `findings`: unknown ones first."""

    name: str
    file: str
    view: Overview
    findings: tuple[Finding, ...]

    @property
    def status(self) -> Status:
        """As the verdict on its run, but that what is known to fail has failed."""
        worst = {finding.status for finding in self.findings}
        return Status.KNOWN_FAILURE if worst == {Status.KNOWN_FAILURE} else self.view.verdict


@dataclass(frozen=True, slots=True)
class Standing:
    """How a clause stands with one implementation. `cell`: over all configurations.

    `finding`: the number, from 1, of the first finding that breaks the clause; 0 when none does.
    """

    cell: Cell
    finding: int


@dataclass(frozen=True, slots=True)
class ComparedClause:
    """One clause with each implementation."""

    clause: Clause
    standings: tuple[Standing, ...]

    @property
    def differs(self) -> bool:
        """Whether it holds for one implementation and fails for another."""
        statuses = {standing.cell.status for standing in self.standings}
        holds, fails = (Status.PASSED, Status.PASSED_IN_PART), (Status.FAILED, Status.KNOWN_FAILURE)
        return not statuses.isdisjoint(holds) and not statuses.isdisjoint(fails)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All runs. `sections`: the clauses that any of them executed or skipped, by section."""

    contenders: tuple[Contender, ...]
    sections: Mapping[str, tuple[ComparedClause, ...]]

    @property
    def clauses(self) -> tuple[ComparedClause, ...]:
        """Those of all sections."""
        return tuple(one for section in self.sections.values() for one in section)


def compare(runs: Mapping[str, RunRecord], clauses: Mapping[str, Clause]) -> Comparison:
    """Lay runs side by side. `runs`: by the file of each.

    Raises ConfigurationError, naming the file, on a clause that the catalogue lacks.
    """
    names = _names(runs)
    contenders = tuple(_contender(names[file], file, _overview(file, record, clauses)) for file, record in runs.items())
    compared = [_compared(rows, contenders) for rows in zip(*map(_rows, contenders), strict=True)]
    sections: dict[str, list[ComparedClause]] = {}
    for one in compared:
        if any(standing.cell.executions for standing in one.standings):
            sections.setdefault(section_of(one.clause.id), []).append(one)
    return Comparison(contenders, {name: tuple(rows) for name, rows in sections.items()})


def _names(runs: Mapping[str, RunRecord]) -> dict[str, str]:
    """What tells the implementations apart: their classes, with the folders of the runs, or with the files."""
    classes = {file: record.implementation.rpartition(":")[2] for file, record in runs.items()}
    with_folders = {file: f"{name} ({Path(file).parent.name or file})" for file, name in classes.items()}
    shorter = (names for names in (classes, with_folders) if len(set(names.values())) == len(names))
    return next(shorter, {file: f"{name} ({file})" for file, name in classes.items()})


def _overview(file: str, record: RunRecord, clauses: Mapping[str, Clause]) -> Overview:
    try:
        return overview(record, clauses)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}") from error


def _contender(name: str, file: str, view: Overview) -> Contender:
    groups: dict[tuple[str, str], list[Execution]] = {}
    for failure in (*view.failures, *view.known_to_fail):
        test = failure.node_id.partition("[")[0]
        known = first_line(failure.reason) if failure.outcome is Outcome.KNOWN_FAILURE else ""
        groups.setdefault((test, known), []).append(failure)
    return Contender(name, file, view, tuple(_finding(test, failures) for (test, _), failures in groups.items()))


def _finding(test: str, failures: Sequence[Execution]) -> Finding:
    shortest = min(failures, key=lambda one: (len(one.reason.splitlines()), len(one.reason), len(one.replay)))
    return Finding(
        status=Status.FAILED if shortest.outcome is Outcome.FAILED else Status.KNOWN_FAILURE,
        test=test,
        shortest=shortest,
        clauses=_distinct(clause for failure in failures for clause in failure.clauses),
        configurations=_distinct(failure.configuration for failure in failures if failure.configuration),
    )


def _rows(contender: Contender) -> list[Row]:
    return [row for section in contender.view.matrix.sections for row in section.rows]


def _compared(rows: Sequence[Row], contenders: Sequence[Contender]) -> ComparedClause:
    standings = [_standing(row, contender.findings) for row, contender in zip(rows, contenders, strict=True)]
    return ComparedClause(rows[0].clause, tuple(standings))


def _standing(row: Row, findings: Sequence[Finding]) -> Standing:
    executions: Counter[str] = Counter()
    for cell in row.cells:
        executions.update(cell.executions)
    numbers = (number for number, finding in enumerate(findings, start=1) if row.clause.id in finding.clauses)
    return Standing(Cell(row.status, executions), next(numbers, 0))


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))
