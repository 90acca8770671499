"""Known failures in a run: expected to fail, an error when they pass or match nothing, and never shrunk."""

from __future__ import annotations

import pytest

from hicache.tests.kit.suite_runs import run, write_suite

ONE_OF_TWO_FAILS = """
@clause("KEY-1", page_sizes=[1])
def test_good(config): ...

@clause("MATCH-14", page_sizes=[1, 3])
def test_bad(config):
    assert config.page_size < 1, "MATCH-14: broken"
"""


def _run_with(pytester: pytest.Pytester, entry_id: str, *options: str) -> pytest.RunResult:
    entry = f'[[failure]]\nid = "{entry_id}"\nkind = "bug"\nreason = "we know"\nlink = "https://example.org/7"\n'
    (pytester.path / "known.toml").write_text(entry, encoding="utf-8")
    return run(pytester, "--known-failures", "known.toml", *options)


@pytest.mark.parametrize("entry_id", ["MATCH-14", "conformance/test_it.py::test_bad*"])
def test_a_listed_test_may_fail(pytester: pytest.Pytester, entry_id: str) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, entry_id)
    result.assert_outcomes(passed=1, xfailed=2)
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.ret}"
    result.stdout.fnmatch_lines(["hicache: 1 passed, 0 failed, 2 known to fail, 0 skipped, 122 not executed"])


def test_what_is_not_listed_fails(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, "conformance/test_it.py::*[full/page3/*]")
    result.assert_outcomes(passed=1, failed=1, xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, f"expected a run that fails, got {result.ret}"


def test_a_listed_test_that_passes_fails(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, "conformance/test_it.py::*")
    result.assert_outcomes(failed=1, xfailed=2)
    result.stdout.fnmatch_lines(["listed as a known failure, but passes: remove known.toml: entry 1 (conformance/*)"])


def test_a_listed_test_may_fail_before_it_begins(pytester: pytest.Pytester) -> None:
    write_suite(
        pytester,
        """
        @pytest.fixture
        def broken():
            raise RuntimeError("no such pool")

        @clause("MATCH-14")
        def test_bad(broken): ...

        @clause("KEY-1")
        def test_good(): ...
        """,
    )
    _run_with(pytester, "MATCH-14").assert_outcomes(passed=1, xfailed=1)


@pytest.mark.parametrize("entry_id", ["LOCK-2", "LOCK-7", "conformance/test_gone.py::*"])
def test_an_entry_that_matches_nothing_fails(pytester: pytest.Pytester, entry_id: str) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS.replace("< 1", "> 0") + '\n@clause("LOCK-7")\ndef test_skipped(): ...\n')
    result = _run_with(pytester, entry_id)
    result.assert_outcomes(passed=3, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED, f"expected a run that fails, got {result.ret}"
    lines = [f"ERROR: known.toml: entry 1 ({entry_id}) matches no executed test: remove it"]
    result.stdout.fnmatch_lines(lines)


@pytest.mark.parametrize("selection", [["-k", "good"], ["conformance/test_it.py"]])
def test_a_part_of_a_suite_needs_not_match_every_entry(pytester: pytest.Pytester, selection: list[str]) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS.replace("< 1", "> 0"))
    result = _run_with(pytester, "LOCK-2", *selection)
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.ret}"


def test_an_entry_of_another_suite_is_left_alone(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS.replace("< 1", "> 0"))
    result = _run_with(pytester, "properties/test_machines.py::*")
    assert result.ret == pytest.ExitCode.OK, f"expected a run that passes, got {result.ret}"


def test_a_list_that_cannot_be_read_ends_the_run(pytester: pytest.Pytester) -> None:
    write_suite(pytester, ONE_OF_TWO_FAILS)
    result = _run_with(pytester, "LOCK-99")
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    result.stderr.fnmatch_lines(["ERROR: known.toml: failure[[]0[]].id is 'LOCK-99'; expected a clause, or tests *"])


SEARCHING = """
from hypothesis import Phase, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test, rule

seen = []

@clause("KEY-1")
@settings(database=None, derandomize=True)
@given(st.integers())
def test_decorated(number):
    seen.append(number)
    assert number < 1000, "KEY-1: too much"

@clause("KEY-2")
def test_machine():
    class Machine(RuleBasedStateMachine):
        @rule()
        def fail(self):
            raise AssertionError("KEY-2: broken")

    seen.append(Phase.shrink in Machine.TestCase.settings.phases)
    run_state_machine_as_test(Machine)

@clause("POOL-2")
def test_what_was_tried():
    phases = test_decorated._hypothesis_internal_use_settings.phases
    print(f"shrunk: {1000 in seen}, {seen[-1]}, phases as before: {phases == tuple(Phase)}")
    assert Phase.shrink in settings().phases, "the profile of the run is back"
"""


def test_a_known_failure_is_not_shrunk(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SEARCHING)
    both = '[[failure]]\nid = "KEY-{}"\nkind = "bug"\nreason = "we know"\nlink = ""\n'
    (pytester.path / "known.toml").write_text(both.format(1) + both.format(2), encoding="utf-8")
    result = run(pytester, "--known-failures", "known.toml", "-s")
    result.assert_outcomes(passed=1, xfailed=2)
    result.stdout.fnmatch_lines(["*shrunk: False, False, phases as before: True"])


def test_an_unexpected_failure_is_shrunk(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SEARCHING)
    result = run(pytester, "-s")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*shrunk: True, True, phases as before: True*"])
