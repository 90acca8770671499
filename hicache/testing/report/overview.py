"""Overview: a run with everything that the pages show of it, computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hicache.testing.contract import TIERS, Clause
from hicache.testing.report.matrix import Matrix, Status, build_matrix
from hicache.testing.report.run import Execution, Outcome, RunRecord
from hicache.testing.report.text import first_line


@dataclass(frozen=True, slots=True)
class Group:
    """Skipped executions or known failures with the same reason, and the clauses of their tests."""

    reason: str
    executions: int
    clauses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """What the pages show.

    `outcomes`: number of executions by outcome. `known_to_fail`: the known failures; `known_failures`: the same,
    grouped by reason. `not_executed`: clauses without an execution, by tier. `operations`: calls of the cache under
    test. `test_s`: seconds in tests, summed over parallel workers.
    """

    record: RunRecord
    matrix: Matrix
    outcomes: Mapping[Outcome, int]
    failures: tuple[Execution, ...]
    known_to_fail: tuple[Execution, ...]
    known_failures: tuple[Group, ...]
    skips: tuple[Group, ...]
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
        known_to_fail=known,
        known_failures=_groups(known),
        skips=_groups(_with_outcome(record, Outcome.SKIPPED)),
        not_executed=_not_executed(matrix),
        operations=sum(execution.operations for execution in record.executions),
        test_s=sum(execution.duration_s for execution in record.executions),
    )


def _with_outcome(record: RunRecord, outcome: Outcome) -> tuple[Execution, ...]:
    return tuple(execution for execution in record.executions if execution.outcome is outcome)


def _groups(executions: Sequence[Execution]) -> tuple[Group, ...]:
    """Group executions by reason, the most frequent reason first."""
    by_reason: dict[str, list[Execution]] = {}
    for execution in executions:
        by_reason.setdefault(first_line(execution.reason) or "no reason given", []).append(execution)
    groups = [
        Group(reason, len(group), tuple(dict.fromkeys(clause for execution in group for clause in execution.clauses)))
        for reason, group in by_reason.items()
    ]
    return tuple(sorted(groups, key=lambda group: -group.executions))


def _not_executed(matrix: Matrix) -> dict[str, tuple[Clause, ...]]:
    rows = [row for section in matrix.sections for row in section.rows]
    clauses = [row.clause for row in rows if row.status is Status.NOT_EXECUTED]
    tiers = sorted({clause.tier for clause in clauses}, key=TIERS.index)
    return {tier: tuple(clause for clause in clauses if clause.tier == tier) for tier in tiers}
