"""The matrix: each cell is as bad as its worst execution, and what never ran is never shown as passed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import CONTRACT
from hicache.testing.report import Execution, Outcome
from hicache.testing.report.matrix import Matrix, Row, Status, build_matrix
from hicache.tests.kit.suite_runs import execution, record

PASSED, FAILED, SKIPPED, KNOWN_FAILURE = (execution("KEY-1", outcome=outcome) for outcome in Outcome)


def row(matrix: Matrix, clause: str) -> Row:
    """The row of a clause."""
    return next(row for section in matrix.sections for row in section.rows if row.clause.id == clause)


@pytest.mark.parametrize(
    ("executions", "expected"),
    [
        ((PASSED,), Status.PASSED),
        ((PASSED, PASSED), Status.PASSED),
        ((SKIPPED,), Status.SKIPPED),
        ((PASSED, SKIPPED), Status.PASSED_IN_PART),
        ((SKIPPED, KNOWN_FAILURE, PASSED), Status.KNOWN_FAILURE),
        ((PASSED, KNOWN_FAILURE, FAILED, SKIPPED), Status.FAILED),
    ],
)
def test_the_worst_execution_decides(executions: Sequence[Execution], expected: Status) -> None:
    matrix = build_matrix(record(*executions), CONTRACT)
    found = row(matrix, "KEY-1")
    assert (found.status, found.cells[0].status) == (expected, expected), f"{executions}: {found}"


def test_a_clause_stands_as_in_its_worst_configuration() -> None:
    executions = (
        execution("KEY-1", configuration="full/page1/lru"),
        execution("KEY-1", configuration="full/page16/lru", outcome=Outcome.FAILED),
        execution("KEY-2", configuration="full/page1/lru"),
    )
    matrix = build_matrix(record(*executions), CONTRACT)
    assert row(matrix, "KEY-1").status is Status.FAILED
    statuses = [cell.status for cell in row(matrix, "KEY-1").cells]
    assert statuses == [Status.PASSED, Status.FAILED], f"KEY-1 passed with page 1 alone, got {statuses}"
    statuses = [cell.status for cell in row(matrix, "KEY-2").cells]
    assert statuses == [Status.PASSED, Status.NOT_EXECUTED], f"KEY-2 ran with page 1 alone, got {statuses}"


def test_a_configuration_that_was_skipped_as_a_whole_says_nothing_of_a_clause_that_ran() -> None:
    executions = (
        execution("KEY-1", configuration="full/page1/lru"),
        execution("KEY-1", configuration="full/page16/lru", outcome=Outcome.SKIPPED),
        execution("KEY-2", configuration="full/page16/lru", outcome=Outcome.SKIPPED),
        execution("KEY-3", configuration="full/page1/lru"),
        execution("KEY-3", configuration="", outcome=Outcome.SKIPPED),
    )
    matrix = build_matrix(record(*executions), CONTRACT)
    statuses = [row(matrix, name).status for name in ("KEY-1", "KEY-2", "KEY-3")]
    expected = [Status.PASSED, Status.SKIPPED, Status.PASSED_IN_PART]
    assert statuses == expected, f"KEY-1 ran elsewhere, KEY-2 nowhere, of KEY-3 a test did not: {statuses}"
    cells = [cell.status for cell in row(matrix, "KEY-1").cells]
    assert cells == [Status.NOT_EXECUTED, Status.PASSED, Status.SKIPPED], f"what was skipped is shown, got {cells}"


def test_what_never_ran_is_not_executed() -> None:
    matrix = build_matrix(record(execution("KEY-1")), CONTRACT)
    for clause in CONTRACT.values():
        if clause.id != "KEY-1":
            status = row(matrix, clause.id).status
            assert status is Status.NOT_EXECUTED, f"{clause.id} of tier {clause.tier}: it never ran, but is {status}"
    assert matrix.counts[Status.PASSED] == 1, f"only KEY-1 ran, got {matrix.counts}"
    assert sum(matrix.counts.values()) == len(CONTRACT), f"each clause counts once, got {matrix.counts}"


def test_a_skipped_clause_is_skipped() -> None:
    matrix = build_matrix(record(execution("HOST-1", outcome=Outcome.SKIPPED)), CONTRACT)
    assert row(matrix, "HOST-1").status is Status.SKIPPED


def test_sections_hold_every_clause_in_the_order_of_the_catalogue() -> None:
    matrix = build_matrix(record(), CONTRACT)
    listed = [row.clause.id for section in matrix.sections for row in section.rows]
    assert listed == list(CONTRACT), f"expected {list(CONTRACT)}, got {listed}"
    names = [section.name for section in matrix.sections]
    assert len(names) == len(set(names)), f"a section stands twice in {names}"


def test_configurations_are_in_an_order_that_people_expect() -> None:
    expected = (
        "",
        "full/page1/lru",
        "full/page3/lru",
        "full/page16/fifo",
        "full/page16/lru",
        "full/page16/lru/bigram",
        "full/page64/lru",
        "full+mamba/page1/lru",
        "full+swa/page1/lru",
        "full+swa+mamba/page1/lru",
    )
    matrix = build_matrix(record(*(execution("KEY-1", configuration=name) for name in sorted(expected))), CONTRACT)
    assert matrix.configurations == expected, f"expected {expected}, got {matrix.configurations}"


def test_an_unknown_clause_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"test_one.*'KEY-99'"):
        build_matrix(record(execution("KEY-99")), CONTRACT)
