"""Each cache that trusts its storage fails the scenario that is named for it, and the reference passes them all."""

from __future__ import annotations

import re

import pytest

from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.mutants.rows import Row
from hicache.testing.mutants.storage import ROWS
from hicache.testing.report import Outcome
from hicache.testing.storage import misbehaving
from hicache.tests.mutants.test_order_mutants import executions


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_trust_in_storage_is_found(pytester: pytest.Pytester, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(misbehaving, "GUARD_S", 1.0)
    reasons = [one.reason for one in executions(pytester, row.adapter, [row.test]) if one.outcome is Outcome.FAILED]
    assert any(re.search(row.told, reason) for reason in reasons), f"{row.slug}: expected {row.told}, got {reasons}"


def test_the_distrust_of_the_reference_is_found_right(pytester: pytest.Pytester) -> None:
    found = executions(pytester, ReferenceAdapter, sorted({row.test for row in ROWS}))
    failed = [one.reason for one in found if one.outcome is Outcome.FAILED]
    assert found, "expected tests to run"
    assert not failed, f"expected no failure of the reference, got {failed}"
