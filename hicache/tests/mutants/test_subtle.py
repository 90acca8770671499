"""Each defect that shows in few situations fails the test of the quick run that is named for it."""

from __future__ import annotations

import re

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.mutants.rows import Row
from hicache.testing.mutants.subtle import ROWS
from hicache.testing.report import Execution, Outcome
from hicache.tests.kit.suite_runs import run_recorded


def executions(pytester: pytest.Pytester, adapter: type[CacheAdapter], *tests: str) -> list[Execution]:
    """What became of tests of the conformance suite in a quick run with this adapter."""
    path = f"{adapter.__module__}:{adapter.__name__}"
    files = [str(suite_folder("conformance") / test) for test in tests]
    record = run_recorded(pytester, *files, "--hicache-quick", "--hicache-adapter", path)
    return [one for one in record.executions if one.outcome is not Outcome.SKIPPED]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_subtle_defect_is_found(pytester: pytest.Pytester, row: Row) -> None:
    found = executions(pytester, row.adapter, row.test)
    reasons = [one.reason for one in found if one.outcome is Outcome.FAILED]
    assert any(re.search(row.told, reason) for reason in reasons), f"{row.slug}: expected {row.told}, got {reasons}"


def test_the_reference_passes_what_finds_them(pytester: pytest.Pytester) -> None:
    tests = sorted({row.test for row in ROWS})
    found = executions(pytester, ReferenceAdapter, *tests)
    passed = {one.node_id.partition("[")[0].rpartition("/")[2] for one in found if one.outcome is Outcome.PASSED}
    assert passed == {*tests}, f"expected each of {tests} to pass in a quick run, got {passed}"
    failed = [one.reason for one in found if one.outcome is Outcome.FAILED]
    assert not failed, f"expected no failure of the reference, got {failed}"
