"""The Hypothesis profiles of the suites: chosen by name, and in force for the suites alone."""

from __future__ import annotations

import pytest

from hicache.tests.kit.suite_runs import FLAT_CACHE, write_suite

OWN = """
from hypothesis import given, settings, strategies

settings.register_profile("ci", max_examples=7)
settings.register_profile("nightly", max_examples=8)
settings.register_profile("own", max_examples=9, deadline=123)
settings.load_profile("own")
"""

OF_A_PROJECT = """
from hypothesis import given, settings, strategies
from hypothesis.internal.conjecture import engine

@settings(print_blob=False)
@given(strategies.integers())
def decorated(number):
    pass

def test_own():
    found = [settings().max_examples, settings().deadline.microseconds, settings.get_profile("ci").max_examples]
    assert found == [9, 123000, 7], found
    found = decorated._hypothesis_internal_use_settings
    assert (found.max_examples, found.deadline.microseconds) == (9, 123000), found
    assert engine.MAX_SHRINKING_SECONDS == 300, engine.MAX_SHRINKING_SECONDS
"""

OF_THE_SUITES = """
from hypothesis import settings
from hypothesis.internal.conjecture import engine

WHEN_IMPORTED = settings()

@clause("MATCH-1")
def test_search():
    for found in (WHEN_IMPORTED, settings()):
        assert (found.max_examples, found.deadline) == ({examples}, None), found
    assert engine.MAX_SHRINKING_SECONDS == {shrinking_s}, engine.MAX_SHRINKING_SECONDS
"""

CONFTEST = """
from pathlib import Path
from hicache.testing.plugin.options import use_profiles_in

use_profiles_in(Path(__file__).parent)
"""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def write_project(pytester: pytest.Pytester) -> None:
    """Write tests of a project with a profile of its own; two other profiles of its have short names."""
    pytester.makeconftest(OWN)
    pytester.makepyfile(test_a_project=OF_A_PROJECT, test_z_project=OF_A_PROJECT)


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run pytest in a process of its own: profiles are registered once in a process."""
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--hicache-adapter", FLAT_CACHE, *options)


def test_the_settings_of_a_project_stay_as_they_are_without_a_suite(pytester: pytest.Pytester) -> None:
    write_project(pytester)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=2)


@pytest.mark.parametrize("folder", ["properties", "tests_before"])
def test_the_profile_of_the_suites_is_in_force_for_them_alone(pytester: pytest.Pytester, folder: str) -> None:
    write_project(pytester)
    write_suite(pytester, OF_THE_SUITES.format(examples=25, shrinking_s=10), folder, CONFTEST)
    run(pytester).assert_outcomes(passed=3)


def test_the_profile_is_in_force_where_the_suites_are_reached_through_a_link(pytester: pytest.Pytester) -> None:
    write_suite(pytester, OF_THE_SUITES.format(examples=25, shrinking_s=10), "properties", CONFTEST)
    (pytester.path / "link").symlink_to("properties", target_is_directory=True)
    run(pytester, "link").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("chosen", "variable", "examples"),
    [("", "true", 150), ("hicache-ci", "", 150), ("hicache-nightly", "", 4000), ("hicache-nightly", "true", 4000)],
)
def test_the_profile_of_a_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, chosen: str, variable: str, examples: int
) -> None:
    if variable:
        monkeypatch.setenv("CI", variable)
    source = OF_THE_SUITES.format(examples=examples, shrinking_s=60)
    if chosen == "hicache-nightly":
        source += "    assert settings().derandomize is False, 'each night searches other examples'\n"
    write_suite(pytester, source, "properties", CONFTEST)
    options = ("--hypothesis-profile", chosen) if chosen else ()
    run(pytester, *options).assert_outcomes(passed=1)


def test_each_failed_search_halves_the_time_to_shrink_the_next(pytester: pytest.Pytester) -> None:
    source = """
        from hypothesis.internal.conjecture import engine

        @clause("MATCH-1")
        @pytest.mark.parametrize("number", range(3))
        def test_search(number):
            assert number < 0, f"shrunk for {engine.MAX_SHRINKING_SECONDS:g} s"
    """
    write_suite(pytester, source, "conformance")
    write_suite(pytester, source, "properties", CONFTEST)
    result = run(pytester, "conformance", "properties", "-n", "0")
    result.assert_outcomes(failed=6)
    found = [
        line.split("AssertionError: ")[1] for line in result.outlines if line.startswith("E ") and "shrunk" in line
    ]
    expected = [f"shrunk for {limit} s" for limit in ("300", "300", "300", "10", "5", "2.5")]
    assert found == expected, f"expected {expected}, got {found}"


def test_a_profile_of_the_project_can_be_chosen_for_the_suites(pytester: pytest.Pytester) -> None:
    own = OWN.replace('settings.load_profile("own")', "").replace("deadline=123", "deadline=None")
    pytester.makeconftest(own)
    write_suite(pytester, OF_THE_SUITES.format(examples=9, shrinking_s=60), "properties", CONFTEST)
    run(pytester, "--hypothesis-profile", "own").assert_outcomes(passed=1)
