"""Each cache that loses a pool fails the test of the census that is named for it, and the reference passes them all."""

from __future__ import annotations

import re

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.mutants.census import ROWS
from hicache.testing.mutants.rows import Row
from hicache.testing.report import Execution, Outcome
from hicache.tests.kit.suite_runs import run_recorded

REPORTS = {"sglang#38031", "sglang#39830", "sglang#31600", "sglang#36121", "sglang#39027"}


def executions(pytester: pytest.Pytester, adapter: type[CacheAdapter], *tests: str) -> list[Execution]:
    """What became of tests of the conformance suite with this adapter."""
    path = f"{adapter.__module__}:{adapter.__name__}"
    files = [str(suite_folder("conformance") / test) for test in tests]
    return [*run_recorded(pytester, *files, "--hicache-adapter", path).executions]


def test_each_report_has_a_mutant() -> None:
    assert {row.source for row in ROWS} == REPORTS, f"expected {REPORTS}, got {[row.source for row in ROWS]}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_lost_pool_is_found(pytester: pytest.Pytester, row: Row) -> None:
    reasons = [one.reason for one in executions(pytester, row.adapter, row.test) if one.outcome is Outcome.FAILED]
    assert any(re.search(row.told, reason) for reason in reasons), f"{row.slug}: expected {row.told}, got {reasons}"


def test_the_reference_loses_none(pytester: pytest.Pytester) -> None:
    tests = sorted({row.test for row in ROWS})
    outcomes = [one.outcome for one in executions(pytester, ReferenceAdapter, *tests)]
    assert outcomes == [Outcome.PASSED] * len(tests), f"expected {tests} to pass, got {outcomes}"
