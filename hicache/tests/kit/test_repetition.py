"""A test that fails and passes is named flaky, and fails the run."""

from __future__ import annotations

import pytest

from hicache.testing.plugin.failures import FLAKY
from hicache.testing.report import Outcome
from hicache.tests.kit.suite_runs import run, run_recorded, write_suite

FIRST_TIME_ALONE = """
import pathlib

def count(name):
    counted = pathlib.Path(f"{name}.count")
    number = int(counted.read_text()) if counted.exists() else 0
    counted.write_text(str(number + 1))
    return number

@clause("MATCH-1")
def test_passes(adapter_type):
    count("passes")

@clause("MATCH-1")
def test_fails(adapter_type):
    count("fails")
    raise AssertionError("MATCH-1: expected 1, got 2")

@clause("MATCH-1")
def test_fails_once(adapter_type):
    assert count("once") > 0, "MATCH-1: expected 3, got 4"
"""

UNRELIABLE = """
from hypothesis import given, settings, strategies
calls = []

@clause("MATCH-1")
@settings(database=None)
@given(number=strategies.integers())
def test_depends_on_more(adapter_type, number):
    calls.append(number)
    assert len(calls) > 1, "MATCH-1: expected 1, got 2"
"""


def test_a_failed_test_is_repeated_once_and_named_flaky_if_it_passes(pytester: pytest.Pytester) -> None:
    write_suite(pytester, FIRST_TIME_ALONE)
    found = {one.node_id.rpartition("::")[2]: one for one in run_recorded(pytester, "--hicache-repeat").executions}
    told = {name: (one.outcome, one.causes) for name, one in found.items()}
    assert told == {
        "test_passes": (Outcome.PASSED, ()),
        "test_fails": (Outcome.FAILED, ("MATCH-1",)),
        "test_fails_once": (Outcome.FAILED, (FLAKY,)),
    }, f"got {told}"
    assert "expected 3, got 4" in found["test_fails_once"].reason, "the failure is shown"
    counts = {path.stem: path.read_text() for path in pytester.path.glob("*.count")}
    assert counts == {"passes": "1", "fails": "2", "once": "2"}, f"expected one repetition of failures, got {counts}"


def test_flaky_tests_have_a_line_and_fail_the_run(pytester: pytest.Pytester) -> None:
    write_suite(pytester, FIRST_TIME_ALONE)
    result = run(pytester, "--hicache-repeat", "-k", "once")
    assert result.ret == 1, f"expected a failure, got {result.ret}"
    result.stdout.fnmatch_lines(["ERROR: flaky, they fail and pass: conformance/test_it.py::test_fails_once"])


def test_without_the_option_nothing_is_repeated(pytester: pytest.Pytester) -> None:
    write_suite(pytester, FIRST_TIME_ALONE)
    found = [one.causes for one in run_recorded(pytester, "-k", "once").executions]
    assert found == [("MATCH-1",)], f"expected the unchanged failure, got {found}"
    assert (pytester.path / "once.count").read_text() == "1", "the test ran once"


def test_few_tests_of_one_cause_are_repeated(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        FIRST_TIME_ALONE
        + """
@clause("MATCH-1")
@pytest.mark.parametrize("number", range(5))
def test_many(adapter_type, number):
    count("many")
    raise AssertionError("MATCH-1: expected 1, got 2")
""",
    )
    run_recorded(pytester, "--hicache-repeat", "-k", "many")
    count = (pytester.path / "many.count").read_text()
    assert count == "8", f"expected three repetitions of five tests, got {count} calls"


def test_an_example_that_fails_and_passes_is_flaky(pytester: pytest.Pytester) -> None:
    write_suite(pytester, UNRELIABLE)
    (found,) = run_recorded(pytester).executions
    assert (found.outcome, found.causes) == (Outcome.FAILED, (FLAKY,)), f"got {found.outcome} and {found.causes}"
