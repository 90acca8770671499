"""A test runs on a copy of the checkout that has the change, and nothing else that is new. All rows run at night."""

from __future__ import annotations

from hicache.tests.proof.kit_mutants import FAILED, read_kit_mutants, run_changed


def test_the_first_row_is_found_and_without_its_change_nothing_is() -> None:
    mutant = read_kit_mutants()[0]
    for changes, expected in (((), 0), (mutant.changes, FAILED)):
        run = run_changed(changes, [mutant.test])
        assert run.returncode == expected, f"{changes}: expected {expected}, got {run.returncode}\n{run.stdout}"
