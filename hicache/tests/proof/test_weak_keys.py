"""Each cache with a weak key fails the conformance suite in the quick profile, by KEY-7; with a sound key it passes."""

from __future__ import annotations

import pytest

from hicache.cli.stage import suite_folder
from hicache.testing.report import Outcome, RunRecord
from hicache.tests.kit.suite_runs import run_recorded
from hicache.tests.proof.mutants.weak_keys import ADAPTERS, DOUBLES

WHOLE = {"blocks_by_requests", "tree_of_pairs"}
"""The doubles that are run with each of their keys. The others are run with those of FIRST: a run takes a second."""

FIRST = {"first_token", "last_token", "low_16_bits", "salt_cut_off"}

OF_JOINED_IDS = "equal_once_they_are_joined"
OF_NAMES = "exactly_its_namespace"
OF_LONG_PROMPTS = "before_it_however_many"

FOUND_BY = {
    "joined_padded_digits": OF_JOINED_IDS,
    "joined_padded_hexadecimal": OF_JOINED_IDS,
    "zeros_dropped": OF_JOINED_IDS,
    "modulo_50257": "by_all_of_its_tokens",
    "modulo_151936": "by_all_of_its_tokens",
    "fields_with_a_colon": OF_NAMES,
    "fields_with_a_unit_separator": OF_NAMES,
    "salt_as_a_number": OF_NAMES,
    "restarted_after_3_pages": OF_LONG_PROMPTS,
    "restarted_after_8_pages": OF_LONG_PROMPTS,
    "restarted_after_512_pages": OF_LONG_PROMPTS,
    "named_in_4_pages": "page_of_a_long_prompt",
}
"""By key: words in the name of the test that finds it. No other test is run with it."""

SOUND = sorted(name for name in ADAPTERS if name.endswith("_sound"))
WEAK = sorted(
    f"{name}_{key}" for name, double in DOUBLES.items() for key in double.keys if name in WHOLE or key in FIRST
)


def run_near_prompts(pytester: pytest.Pytester, adapter: str, *options: str) -> RunRecord:
    """The record of a quick run of the tests of similar prompts; for names of objects of those of storage alone."""
    suite = str(suite_folder("conformance") / "test_near_prompts.py")
    path = f"hicache.tests.proof.mutants.weak_keys:{adapter}"
    chosen = ("-k", "stored or object") if adapter.startswith("objects") else ()
    return run_recorded(pytester, suite, "--hicache-quick", "--hicache-adapter", path, *chosen, *options)


@pytest.mark.parametrize("adapter", WEAK)
def test_a_weak_key_is_found(pytester: pytest.Pytester, adapter: str) -> None:
    finder = next((words for key, words in FOUND_BY.items() if adapter.endswith(key)), None)
    executions = run_near_prompts(pytester, adapter, "-x", *(("-k", finder) if finder else ())).executions
    failed = [one for one in executions if one.outcome is Outcome.FAILED]
    assert any("KEY-7" in one.clauses for one in failed), f"expected a test of KEY-7 to fail, got {failed}"
    wrong = [one.reason for one in failed if finder and "KEY-7: " not in one.reason]
    assert not wrong, f"expected the message of KEY-7, got {wrong}"


@pytest.mark.parametrize("adapter", SOUND)
def test_a_sound_key_is_not(pytester: pytest.Pytester, adapter: str) -> None:
    executions = run_near_prompts(pytester, adapter).executions
    failed = [one.reason for one in executions if one.outcome is Outcome.FAILED]
    assert not failed, f"expected no failure of a sound key, got {failed}"
    assert any(one.outcome is Outcome.PASSED for one in executions), f"expected tests of {adapter} to run"


def test_every_double_has_a_sound_key_beside_its_weak_ones() -> None:
    assert len(SOUND) == len(DOUBLES), f"expected one of each of {list(DOUBLES)}, got {SOUND}"
