"""Overview: a run with everything worked out that the pages show of it."""

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
    """Executions that ended for the same reason, and the clauses that they would have checked."""

    reason: str
    executions: int
    clauses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    """What the pages show.

    `outcomes`: executions by outcome. `known_failures`: those that are known to fail, by reason. `silent`: clauses
    without an execution, by tier. `operations`: calls of the cache under test. `test_s`: seconds in tests, summed over
    parallel workers.
    """

    record: RunRecord
    matrix: Matrix
    outcomes: Mapping[Outcome, int]
    failures: tuple[Execution, ...]
    known_to_fail: tuple[Execution, ...]
    known_failures: tuple[Group, ...]
    skips: tuple[Group, ...]
    silent: Mapping[str, tuple[Clause, ...]]
    operations: int
    test_s: float

    @property
    def verdict(self) -> Status:
        """Failed when anything failed, or when nothing passed."""
        if self.outcomes[Outcome.FAILED]:
            return Status.FAILED
        return Status.PASSED if self.outcomes[Outcome.PASSED] else Status.NOT_EXECUTED


def overview(record: RunRecord, clauses: Mapping[str, Clause]) -> Overview:
    """Work out everything. Raises ConfigurationError on a clause that the catalogue lacks."""
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
        silent=_silent(matrix),
        operations=sum(execution.operations for execution in record.executions),
        test_s=sum(execution.duration_s for execution in record.executions),
    )


def _with_outcome(record: RunRecord, outcome: Outcome) -> tuple[Execution, ...]:
    return tuple(execution for execution in record.executions if execution.outcome is outcome)


def _groups(executions: Sequence[Execution]) -> tuple[Group, ...]:
    """Most frequent reason first."""
    by_reason: dict[str, list[Execution]] = {}
    for execution in executions:
        by_reason.setdefault(first_line(execution.reason) or "no reason given", []).append(execution)
    groups = [
        Group(reason, len(group), tuple(dict.fromkeys(clause for execution in group for clause in execution.clauses)))
        for reason, group in by_reason.items()
    ]
    return tuple(sorted(groups, key=lambda group: -group.executions))


def _silent(matrix: Matrix) -> dict[str, tuple[Clause, ...]]:
    rows = [row for section in matrix.sections for row in section.rows]
    silent = [row.clause for row in rows if row.status is Status.NOT_EXECUTED]
    tiers = sorted({clause.tier for clause in silent}, key=TIERS.index)
    return {tier: tuple(clause for clause in silent if clause.tier == tier) for tier in tiers}
