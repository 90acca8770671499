"""Each defective cache fails the test of the conformance suite that is named for it.

That the reference passes the same tests is what the environment `conformance` shows.
"""

from __future__ import annotations

import re

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.report import Outcome
from hicache.testing.storage import misbehaving
from hicache.tests.kit.suite_runs import run_recorded
from hicache.tests.proof.mutants import callers, census, order, storage, subtle
from hicache.tests.proof.mutants.rows import Row

QUICK = [row for table in (callers, order, storage, subtle) for row in table.ROWS]
"""Those that the quick verdict finds."""

ROWS = [
    *(pytest.param(row, ("--hicache-quick",), id=row.slug) for row in QUICK),
    *(pytest.param(row, (), id=row.slug) for row in census.ROWS),
]

LOST_POOLS = {"sglang#38031", "sglang#39830", "sglang#31600", "sglang#36121", "sglang#39027"}


@pytest.mark.parametrize(("row", "options"), ROWS)
def test_a_defect_is_found(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, row: Row, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(misbehaving, "GUARD_S", 1.0)
    adapter = f"{row.adapter.__module__}:{row.adapter.__name__}"
    test = str(suite_folder("conformance") / row.test)
    record = run_recorded(pytester, test, *options, "--hicache-adapter", adapter)
    reasons = [one.reason for one in record.executions if one.outcome is Outcome.FAILED]
    assert any(re.search(row.told, reason) for reason in reasons), f"{row.slug}: expected {row.told}, got {reasons}"


def test_each_report_of_a_lost_pool_has_a_mutant() -> None:
    assert {row.source for row in census.ROWS} == LOST_POOLS, f"got {[row.source for row in census.ROWS]}"
