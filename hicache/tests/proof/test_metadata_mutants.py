"""Mutants of the metadata service and of its backend: the conformance suite finds each, and names its clause."""

from __future__ import annotations

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run_recorded
from hicache.tests.proof.mutants.metadata import MUTANTS, MetadataMutant

REFERENCE = ("--hicache-adapter", DEFAULT_ADAPTER)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.slug)
def test_the_suite_finds_a_metadata_service_with_a_defect(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mutant: MetadataMutant
) -> None:
    assert getattr(mutant.owner, mutant.name) is not mutant.defect, f"{mutant.slug} changes nothing"
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.defect)
    file = suite_folder("conformance") / "storage" / mutant.file
    record = run_recorded(pytester, str(file), "-k", mutant.test, "--hicache-backend", "hf3fs", *REFERENCE)
    failed = [one for one in record.executions if one.outcome is Outcome.FAILED]
    assert failed, f"{mutant.slug}: expected {mutant.test} to fail, got {len(record.executions)} that passed"
    causes = {cause for one in failed for cause in one.causes}
    assert mutant.clause in causes, f"{mutant.slug}: expected {mutant.clause}, got {causes}"
