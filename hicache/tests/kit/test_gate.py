"""The gate finds the clauses that no test names, and recognises every way of naming one."""

from __future__ import annotations

import pytest

from hicache.testing.contract import CONTRACT
from hicache.testing.plugin.gate import clauses_missing_in, clauses_named_in
from hicache.tests.kit.suite_runs import write_suite


@pytest.fixture
def package(pytester: pytest.Pytester) -> str:
    """A suite that can be imported."""
    write_suite(
        pytester,
        """
        @clause("KEY-1", "KEY-2")
        def test_function(): ...

        @clause("KEY-3")
        @pytest.mark.parametrize("number", [1, 2])
        @pytest.mark.skip
        def test_parametrized(number): ...

        @clause("LOCK-1")
        class TestClass:
            @clause("LOCK-2")
            def test_method(self): ...

        @clause("EVICT-1")
        def no_test(): ...

        @clause("FETCH-7")
        def test_of_another_tier(): ...
        """,
        folder="small_suite",
    )
    pytester.syspathinsert()
    return "small_suite"


def test_every_way_of_naming_a_clause_counts(package: str) -> None:
    tested = set(clauses_named_in(package))
    expected = {"KEY-1", "KEY-2", "KEY-3", "LOCK-1", "LOCK-2", "FETCH-7"}
    assert tested == expected, f"expected {sorted(expected)}, got {sorted(tested)}"


def test_what_is_not_named_is_untested(package: str) -> None:
    untested = clauses_missing_in(package, {"device", "host"})
    testable = [found.id for found in CONTRACT.values() if found.tier in {"device", "host"}]
    expected = tuple(name for name in testable if name not in {"KEY-1", "KEY-2", "KEY-3", "LOCK-1", "LOCK-2"})
    assert untested == expected, f"expected and untested differ in {sorted(set(untested) ^ set(expected))}"
    assert not {"FETCH-7", "RANK-1"} & set(untested), "a clause of another tier has its test in another suite"
