"""Causes: a failure counts for the clause that was found broken, whatever the test is about."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hicache.errors import InvariantError
from hicache.testing.contract import CONTRACT
from hicache.testing.laws import CHECKED_AFTER_EACH_VERB
from hicache.testing.plugin.causes import CRASHED, causes_of
from hicache.testing.report import Outcome, RunRecord
from hicache.testing.report.matrix import Status, build_matrix, overview
from hicache.testing.report.text import headline
from hicache.testing.violation import ViolationError, violation
from hicache.tests.inventory.laws import read_laws
from hicache.tests.kit.suite_runs import execution, record, run, run_recorded, write_suite

REPOSITORY = Path(__file__).parents[3]

SUITE = """
from hicache.testing.violation import violation

@clause("POOL-3", "KEY-2")
def test_of_a_lock(driver):
    raise violation("REQ-3", "slot 7", "its bytes", "zeros")

@clause("KEY-1", "KEY-2")
def test_of_keys(driver):
    assert driver is None, "KEY-2: expected nothing, got a driver"

@clause("KEY-1", "KEY-2")
def test_without_a_word(driver):
    assert driver is None

@clause("MATCH-1")
def test_of_a_match(driver):
    driver.adapter.match(None, chunked=False)

@clause("MATCH-14")
def test_that_passes(driver):
    pass
"""


@pytest.fixture
def found(pytester: pytest.Pytester) -> RunRecord:
    """A run in which tests fail for four reasons."""
    write_suite(pytester, SUITE)
    return run_recorded(pytester, "--quick")


def statuses(run: RunRecord) -> dict[str, Status]:
    """The status of each clause that was executed."""
    rows = [row for section in build_matrix(run, CONTRACT).sections for row in section.rows]
    return {row.clause.id: row.status for row in rows if row.status is not Status.NOT_EXECUTED}


def test_each_execution_has_its_causes(found: RunRecord) -> None:
    causes = {one.node_id.partition("::")[2].partition("[")[0]: one.causes for one in found.executions}
    assert causes == {
        "test_of_a_lock": ("REQ-3",),
        "test_of_keys": ("KEY-2",),
        "test_without_a_word": ("KEY-1", "KEY-2"),
        "test_of_a_match": ("AttributeError in FlatCache.match",),
        "test_that_passes": (),
    }, f"got {causes}"


def test_a_clause_fails_where_its_law_was_broken_and_nowhere_else(found: RunRecord) -> None:
    expected = {
        "KEY-1": Status.FAILED,
        "KEY-2": Status.FAILED,
        "POOL-3": Status.UNDECIDED,
        "MATCH-1": Status.UNDECIDED,
        "MATCH-14": Status.PASSED,
        "REQ-3": Status.FAILED,
    }
    assert statuses(found) == expected, f"got {statuses(found)}"


def test_the_headline_names_the_causes_and_not_the_tests() -> None:
    many = [
        execution("LOCK-1", outcome=Outcome.FAILED, causes=("REQ-3",), name=f"test_{number}") for number in range(875)
    ]
    error = execution("KEY-1", outcome=Outcome.FAILED, causes=("KeyError in Mine.match",))
    told = headline(overview(record(*many, error), CONTRACT))
    assert told == "1 clause broken: REQ-3 in 875 tests; 1 error: KeyError in Mine.match in 1 test", f"got {told}"


def test_a_group_of_failures_has_the_causes_of_all() -> None:
    group = pytest.importorskip("builtins", reason="needs ExceptionGroup").__dict__.get("ExceptionGroup")
    if group is None:
        pytest.skip("this Python has no ExceptionGroup")
    raised = group("two", [violation("REQ-3", "a", 1, 2), AssertionError("KEY-1: no"), violation("REQ-3", "b", 1, 2)])
    assert causes_of(raised, ("MATCH-1",)) == ("REQ-3", "KEY-1"), f"got {causes_of(raised, ('MATCH-1',))}"


def test_an_error_raised_from_a_broken_law_has_its_clause() -> None:
    raised = InvariantError("fault run with seed 3")
    raised.__cause__ = violation("STORE-3", "get", "a miss", "other bytes")
    assert causes_of(raised, ()) == ("STORE-3",), f"got {causes_of(raised, ())}"


def test_a_message_of_the_cache_itself_is_not_taken_for_a_clause() -> None:
    causes = causes_of(ValueError("REQ-3: not a law of the kit"), ("KEY-1",))
    assert causes == ("ValueError in the test",), f"got {causes}"


def test_a_violation_survives_a_process() -> None:
    error = pickle.loads(pickle.dumps(violation("REQ-3", "slot 7", 1, 2)))  # noqa: S301 - bytes of our own
    assert isinstance(error, ViolationError), f"got {error!r}"
    assert (error.clause, str(error)) == ("REQ-3", "REQ-3: slot 7: expected 1, got 2"), f"got {error!r}"


def test_a_known_failure_of_a_law_covers_every_test_that_finds_it(pytester: pytest.Pytester, tmp_path: Path) -> None:
    write_suite(pytester, SUITE)
    known = tmp_path / "known.toml"
    known.write_text('[[failure]]\nid = "REQ-3"\nkind = "bug"\nreason = "zeros"\nlink = ""\n', encoding="utf-8")
    found = run_recorded(pytester, "--quick", "--known-failures", str(known), "-k", "of_a_lock or passes")
    outcomes = {one.outcome for one in found.executions if "of_a_lock" in one.node_id}
    assert outcomes == {Outcome.KNOWN_FAILURE}, f"got {[(one.node_id, one.outcome) for one in found.executions]}"


def test_tests_can_be_selected_by_a_law(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SUITE)
    result = run(pytester, "--quick", "-k", "REQ-3", "--collect-only", "-q")
    assert any("test_of_a_lock" in line for line in result.outlines), f"got {result.outlines}"


def test_a_clause_that_does_not_exist_cannot_be_selected(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SUITE)
    result = run(pytester, "conformance", "-k", "LOCK-99")
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    result.stderr.fnmatch_lines(["*-k: the contract has no clause LOCK-99*"])


def test_a_process_that_died_is_a_cause() -> None:
    assert CRASHED not in CONTRACT, "the name of an error must not be taken for a clause"


def test_the_clauses_checked_after_each_verb_are_those_of_the_laws() -> None:
    places = ("hicache/testing/laws/", "hicache/testing/patterns.py")
    driving = tuple(f"hicache/testing/driving/{name}.py" for name in ("inspector", "ledger", "contents"))
    raised = {
        clause_id
        for law in read_laws(REPOSITORY)
        if law["where"].startswith((*places, *driving))
        for clause_id in law["clauses"]
    }
    assert raised == CHECKED_AFTER_EACH_VERB, f"these differ: {sorted(raised ^ CHECKED_AFTER_EACH_VERB)}"
