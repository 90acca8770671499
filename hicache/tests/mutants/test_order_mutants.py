"""Each tree that evicts in another order fails the scenario that is named for it, and the reference passes them all."""

from __future__ import annotations

import re

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.mutants.order import ROWS
from hicache.testing.mutants.rows import Row
from hicache.testing.report import Execution, Outcome
from hicache.tests.kit.suite_runs import run_recorded


def executions(pytester: pytest.Pytester, adapter: type[CacheAdapter], tests: list[str]) -> list[Execution]:
    """What became of tests of the conformance suite with this adapter."""
    path = f"{adapter.__module__}:{adapter.__name__}"
    record = run_recorded(
        pytester, *(str(suite_folder("conformance") / test) for test in tests), "--hicache-adapter", path
    )
    return [one for one in record.executions if one.outcome is not Outcome.SKIPPED]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_another_order_is_found(pytester: pytest.Pytester, row: Row) -> None:
    reasons = [one.reason for one in executions(pytester, row.adapter, [row.test]) if one.outcome is Outcome.FAILED]
    assert any(re.search(row.told, reason) for reason in reasons), f"{row.slug}: expected {row.told}, got {reasons}"


def test_the_order_of_the_reference_is_found_right(pytester: pytest.Pytester) -> None:
    found = executions(pytester, ReferenceAdapter, sorted({row.test for row in ROWS}))
    failed = [one.reason for one in found if one.outcome is Outcome.FAILED]
    assert found, "expected tests to run"
    assert not failed, f"expected no failure of the reference, got {failed}"
