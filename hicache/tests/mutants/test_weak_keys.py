"""Each cache with a weak key fails the conformance suite in the quick profile, by KEY-7; with a sound key it passes."""

from __future__ import annotations

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.mutants.weak_keys import ADAPTERS, DOUBLES
from hicache.testing.report import Outcome, RunRecord
from hicache.tests.kit.suite_runs import run_recorded

WHOLE = {"blocks_by_requests", "tree_of_pairs"}
"""The doubles that are run with each of their keys. The others are run with those of FIRST: a run takes a second."""

FIRST = {"first_token", "last_token", "low_16_bits", "salt_cut_off"}

SOUND = sorted(name for name in ADAPTERS if name.endswith("_sound"))
WEAK = sorted(
    f"{name}_{key}" for name, double in DOUBLES.items() for key in double.keys if name in WHOLE or key in FIRST
)


def run_near_prompts(pytester: pytest.Pytester, adapter: str, *options: str) -> RunRecord:
    """The record of a quick run of the tests of similar prompts; for names of objects of those of storage alone."""
    suite = str(suite_folder("conformance") / "test_near_prompts.py")
    path = f"hicache.testing.mutants.weak_keys:{adapter}"
    chosen = ("-k", "stored or object") if adapter.startswith("objects") else ()
    return run_recorded(pytester, suite, "--hicache-quick", "--hicache-adapter", path, *chosen, *options)


@pytest.mark.parametrize("adapter", WEAK)
def test_a_weak_key_is_found(pytester: pytest.Pytester, adapter: str) -> None:
    executions = run_near_prompts(pytester, adapter, "-x").executions
    failed = [one for one in executions if one.outcome is Outcome.FAILED]
    assert any("KEY-7" in one.clauses for one in failed), f"expected a test of KEY-7 to fail, got {failed}"


@pytest.mark.parametrize("adapter", SOUND)
def test_a_sound_key_is_not(pytester: pytest.Pytester, adapter: str) -> None:
    executions = run_near_prompts(pytester, adapter).executions
    failed = [one.reason for one in executions if one.outcome is Outcome.FAILED]
    assert not failed, f"expected no failure of a sound key, got {failed}"
    assert any(one.outcome is Outcome.PASSED for one in executions), f"expected tests of {adapter} to run"


def test_every_double_has_a_sound_key_beside_its_weak_ones() -> None:
    assert len(SOUND) == len(DOUBLES), f"expected one of each of {list(DOUBLES)}, got {SOUND}"
