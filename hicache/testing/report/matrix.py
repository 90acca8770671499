"""Matrix: clauses by configurations, and the status of each cell, clause and section."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hicache.errors import ConfigurationError
from hicache.testing.contract import Clause
from hicache.testing.report.run import Execution, Outcome, RunRecord


class Status(str, Enum):
    """The status of a clause, in one configuration or in all."""

    PASSED = "passed"
    PASSED_IN_PART = "passed in part"
    FAILED = "failed"
    KNOWN_FAILURE = "known failure"
    SKIPPED = "skipped"
    NOT_EXECUTED = "not executed"


@dataclass(frozen=True, slots=True)
class Cell:
    """One clause in one configuration. `executions`: their number by outcome."""

    status: Status
    executions: Mapping[str, int]


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
    cells = _executions_by_cell(record.executions, clauses)
    configurations = tuple(sorted({configuration for _, configuration in cells}, key=_natural_order))
    rows = [_row(clause, configurations, cells) for clause in clauses.values()]
    names = dict.fromkeys(section_of(row.clause.id) for row in rows)
    sections = [_section(name, [row for row in rows if section_of(row.clause.id) == name]) for name in names]
    return Matrix(configurations, tuple(sections), _counts(rows))


def section_of(clause_id: str) -> str:
    """The section of a clause: `LOCK` for `LOCK-3`."""
    return clause_id.partition("-")[0]


def _executions_by_cell(
    executions: Iterable[Execution], clauses: Mapping[str, Clause]
) -> dict[tuple[str, str], list[Execution]]:
    cells: dict[tuple[str, str], list[Execution]] = {}
    for execution in executions:
        for clause_id in execution.clauses:
            if clause_id not in clauses:
                raise ConfigurationError(
                    f"{execution.node_id} names clause {clause_id!r}, which is not in the contract"
                )
            cells.setdefault((clause_id, execution.configuration), []).append(execution)
    return cells


def _row(clause: Clause, configurations: Sequence[str], executed: Mapping[tuple[str, str], Sequence[Execution]]) -> Row:
    by_cell = [executed.get((clause.id, configuration), ()) for configuration in configurations]
    # A configuration that this machine cannot open does not change the status of a clause that ran in others.
    opened = [cell for name, cell in zip(configurations, by_cell, strict=True) if not _is_closed(name, cell)]
    status = _status([execution for cell in (opened if any(opened) else by_cell) for execution in cell])
    return Row(clause, status, tuple(_cell(executions) for executions in by_cell))


def _is_closed(configuration: str, executions: Sequence[Execution]) -> bool:
    return bool(configuration) and all(execution.outcome is Outcome.SKIPPED for execution in executions)


def _cell(executions: Sequence[Execution]) -> Cell:
    return Cell(_status(executions), Counter(execution.outcome.value for execution in executions))


def _status(executions: Iterable[Execution]) -> Status:
    """The worst outcome. PASSED: every execution passed. PASSED_IN_PART: some passed and the others were skipped."""
    outcomes = {execution.outcome for execution in executions}
    if Outcome.FAILED in outcomes:
        return Status.FAILED
    if Outcome.KNOWN_FAILURE in outcomes:
        return Status.KNOWN_FAILURE
    if Outcome.SKIPPED in outcomes:
        return Status.PASSED_IN_PART if Outcome.PASSED in outcomes else Status.SKIPPED
    return Status.PASSED if outcomes else Status.NOT_EXECUTED


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
