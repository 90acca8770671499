"""Causes: a failure counts for the clause that was found broken, in any test."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from hicache.errors import InvariantError
from hicache.testing.contract import CONTRACT
from hicache.testing.laws import CHECKED_AFTER_EACH_VERB
from hicache.testing.plugin.failures import causes_of
from hicache.testing.report import NO_EVIDENCE, Execution, Outcome, RunRecord
from hicache.testing.report.matrix import Status, build_matrix, overview
from hicache.testing.report.pages import render_html
from hicache.testing.report.run import Evidence, Step
from hicache.testing.report.text import headline
from hicache.testing.violation import ViolationError, violation
from hicache.tests.inventory.laws import read_laws
from hicache.tests.kit.html_page import HtmlPage
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


def statuses(run: RunRecord) -> dict[str, Status]:
    """The status of each clause that was executed."""
    rows = [row for section in build_matrix(run, CONTRACT).sections for row in section.rows]
    return {row.clause.id: row.status for row in rows if row.status is not Status.NOT_EXECUTED}


def test_a_clause_fails_where_its_law_was_broken_and_nowhere_else(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SUITE)
    found = run_recorded(pytester, "--hicache-quick")
    causes = {one.node_id.partition("::")[2].partition("[")[0]: one.causes for one in found.executions}
    assert causes == {
        "test_of_a_lock": ("REQ-3",),
        "test_of_keys": ("KEY-2",),
        "test_without_a_word": ("KEY-1", "KEY-2"),
        "test_of_a_match": ("AttributeError in FlatCache.match",),
        "test_that_passes": (),
    }, f"got {causes}"
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
    assert told == (
        "1 clause broken: REQ-3 in 875 tests of LOCK-1. 1 error: KeyError in Mine.match in 1 test of KEY-1"
    ), f"got {told}"


def failed(number: int, cause: str, *clauses: str) -> Execution:
    """A failed test of these clauses, with this cause."""
    return execution(*clauses, outcome=Outcome.FAILED, causes=(cause,), name=f"test_{number}")


def test_what_only_tests_of_a_broken_clause_find_joins_that_clause() -> None:
    own = [failed(number, "EVICT-8", "EVICT-8") for number in range(3)]
    view = overview(record(*own, failed(3, "HOST-2", "HOST-2", "EVICT-8"), failed(4, "KEY-1", "KEY-1")), CONTRACT)
    joined = [(cause.name, cause.also) for cause in view.causes]
    assert joined == [("EVICT-8", ("HOST-2",)), ("KEY-1", ())], f"expected HOST-2 to join EVICT-8 alone, got {joined}"
    assert len(view.causes[0].failures) == 4, f"expected the failures of both, got {view.causes[0].failures}"
    assert view.causes[0].failures[-1].causes == ("HOST-2",), "expected the smallest example to be its own"


def test_what_another_test_finds_too_does_not_join() -> None:
    own = [failed(number, "EVICT-8", "EVICT-8") for number in range(3)]
    others = [failed(3, "HOST-2", "HOST-2", "EVICT-8"), failed(4, "HOST-2", "HOST-2")]
    view = overview(record(*own, *others), CONTRACT)
    assert [cause.name for cause in view.causes] == ["EVICT-8", "HOST-2"], f"got {view.causes}"


def test_of_equally_frequent_causes_the_one_comes_first_of_which_more_tests_failed() -> None:
    passed = [execution("FETCH-9", name=f"test_other_{number}") for number in range(9)]
    each = [
        failed(0, "KeyError in Mine.match", "KEY-1"),
        failed(1, "FETCH-9", "FETCH-9"),
        failed(2, "STORE-3", "STORE-3"),
    ]
    names = [cause.name for cause in overview(record(*each, *passed), CONTRACT).causes]
    assert names == ["STORE-3", "FETCH-9", "KeyError in Mine.match"], f"got {names}"


def test_an_error_is_about_the_clause_that_a_test_of_one_clause_says() -> None:
    many = ("FETCH-1", "FETCH-4", "FETCH-6", "MATCH-1", "STORE-3")
    error = "AttributeError in Mine.drain"
    passed = [execution(clause, name=f"test_other_{number}") for clause in (*many, "KEY-3") for number in range(4)]
    machines = [failed(number, error, *many) for number in range(2)]
    (cause,) = overview(record(*machines, failed(2, error, "KEY-3"), *passed), CONTRACT).causes
    assert cause.about[0] == "KEY-3", (
        f"1 of 5 tests of KEY-3 alone; of the others 2 of 6, of five clauses: {cause.about}"
    )


def test_nothing_joins_an_error() -> None:
    errors = [failed(number, "KeyError in Mine.match", "KEY-1") for number in range(3)]
    view = overview(record(*errors, failed(3, "KEY-1", "KEY-1")), CONTRACT)
    assert [cause.name for cause in view.causes] == ["KeyError in Mine.match", "KEY-1"], f"got {view.causes}"


def raised(number: int, cause: str, line: int) -> Execution:
    """A failed test that an error ended, which was raised at a line."""
    frames = f'  File "mine.py", line {number + 1}, in verb\n  File "mine.py", line {line}, in pages\n    pages[0]\n'
    return replace(failed(number, cause, "KEY-1"), evidence=replace(NO_EVIDENCE, traceback=frames))


def test_an_error_raised_at_one_line_is_one_cause_whatever_the_verb() -> None:
    names = ("KeyError in Mine.match", "KeyError in Mine.insert", "KeyError in Mine.evict", "OSError in Mine.step")
    failures = [raised(number, name, line) for number, (name, line) in enumerate(zip(names, (7, 7, 8, 7), strict=True))]
    causes = overview(record(*failures), CONTRACT).causes
    assert [(cause.name, cause.also) for cause in causes] == [
        ("KeyError in Mine.match", ("KeyError in Mine.insert",)),
        ("KeyError in Mine.evict", ()),
        ("OSError in Mine.step", ()),
    ], f"got {causes}"


def test_a_law_is_told_with_the_clauses_of_the_tests_that_met_it() -> None:
    met = [failed(number, "REQ-3", "FETCH-5", "FETCH-4") for number in range(2)]
    passed = [execution("FETCH-4", name=f"test_other_{number}") for number in range(9)]
    told = headline(overview(record(*met, *passed), CONTRACT))
    assert told == "1 clause broken: REQ-3 in 2 tests of FETCH-5, FETCH-4", f"got {told}"


@pytest.mark.parametrize(
    ("own", "told"), [(1, "REQ-3 in 3 tests, some of FETCH-5"), (2, "REQ-3 in 4 tests")], ids=["a-third", "half"]
)
def test_a_clause_that_few_of_its_tests_name_is_told_with_the_clauses_of_the_others(own: int, told: str) -> None:
    met = [failed(number, "REQ-3", "FETCH-5") for number in range(2)]
    named = [failed(10 + number, "REQ-3", "REQ-3", "RANK-1") for number in range(own)]
    line = headline(overview(record(*met, *named), CONTRACT))
    assert line == f"1 clause broken: {told}", f"got {line}"


def test_the_example_of_a_cause_is_the_one_with_the_fewest_calls() -> None:
    evidence = Evidence((Step("match", "[1]", "None"),), "root", "root", "")
    one = failed(0, "REQ-3", "REQ-3")
    brief = replace(one, node_id="a search", reason="brief", operations=2)
    long = replace(one, node_id="twenty calls", reason="brief, too", operations=20, evidence=evidence)
    short = replace(one, node_id="ten calls", reason="a message of\ntwo lines", operations=10, evidence=evidence)
    (cause,) = overview(record(brief, long, short), CONTRACT).causes
    found = [failure.node_id for failure in cause.failures]
    assert found == ["ten calls", "twenty calls", "a search"], f"expected what has steps first, got {found}"


def test_a_headline_tells_three_causes() -> None:
    causes = ("KeyError in Mine.match", "KEY-1", "LOCK-1", "OSError in Mine.step")
    failures = [failed(10 * place + n, cause, "POOL-1") for place, cause in enumerate(causes) for n in range(5 - place)]
    told = headline(overview(record(*failures), CONTRACT))
    assert told == (
        "2 clauses broken: KEY-1 in 4 tests of POOL-1; LOCK-1 in 3 tests of POOL-1. "
        "2 errors: KeyError in Mine.match in 5 tests of POOL-1; 1 more"
    ), f"got {told}"


def test_each_broken_clause_of_the_page_leads_to_its_cause() -> None:
    own = [failed(number, "EVICT-8", "EVICT-8") for number in range(2)]
    view = overview(record(*own, failed(3, "HOST-2", "HOST-2", "EVICT-8")), CONTRACT)
    page = HtmlPage(render_html(view, CONTRACT, {}))
    for clause in ("EVICT-8", "HOST-2"):
        (cell,) = page.one("tr", id=clause).all("td")
        cause = page.target(cell.one("a"))
        assert cause.attributes["id"] == "cause-1", (
            f"expected {clause} to lead to the one cause, got {cause.attributes}"
        )
    joined = [one.text for one in cause.all("p")]
    assert "May also explain: HOST-2." in joined, f"expected what joined the cause, got {joined}"


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


@pytest.mark.parametrize(
    ("raised", "cause"),
    [
        (AssertionError("the search did not reach a load"), "AssertionError in the test"),
        (pytest.fail.Exception("20 examples did not reach a load"), "Failed in the test"),
    ],
    ids=["assertion", "fail"],
)
def test_a_failure_of_a_test_that_names_no_clause_is_an_error(raised: BaseException, cause: str) -> None:
    assert causes_of(raised, ()) == (cause,), f"expected {cause}, got {causes_of(raised, ())}"


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
    found = run_recorded(
        pytester, "--hicache-quick", "--hicache-known-failures", str(known), "-k", "of_a_lock or passes"
    )
    outcomes = {one.outcome for one in found.executions if "of_a_lock" in one.node_id}
    assert outcomes == {Outcome.KNOWN_FAILURE}, f"got {[(one.node_id, one.outcome) for one in found.executions]}"


def test_tests_can_be_selected_by_a_law(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SUITE)
    result = run(pytester, "--hicache-quick", "-k", "REQ-3", "--collect-only", "-q")
    assert any("test_of_a_lock" in line for line in result.outlines), f"got {result.outlines}"


def test_a_clause_that_does_not_exist_cannot_be_selected(pytester: pytest.Pytester) -> None:
    write_suite(pytester, SUITE)
    result = run(pytester, "conformance", "-k", "LOCK-99")
    assert result.ret == pytest.ExitCode.USAGE_ERROR, f"expected a usage error, got {result.ret}"
    result.stderr.fnmatch_lines(["*-k: the contract has no clause LOCK-99*"])


def test_the_clauses_checked_after_each_verb_are_those_of_the_laws() -> None:
    places = ("hicache/testing/laws/", "hicache/testing/driving/patterns.py")
    driving = tuple(f"hicache/testing/driving/{name}.py" for name in ("inspector", "ledger", "contents", "tree_view"))
    raised = {
        clause_id
        for law in read_laws(REPOSITORY)
        if law["where"].startswith((*places, *driving)) and law["name"] != "require_nothing_cached"  # of a reset
        for clause_id in law["clauses"]
    }
    assert raised == CHECKED_AFTER_EACH_VERB, f"these differ: {sorted(raised ^ CHECKED_AFTER_EACH_VERB)}"
