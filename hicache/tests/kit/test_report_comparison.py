"""The comparison of runs: each clause with each implementation, what fails, what did not run; one page that is safe."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hicache.errors import ConfigurationError
from hicache.testing.contract import CONTRACT
from hicache.testing.report import Outcome
from hicache.testing.report.comparison import ComparedClause, Comparison, compare
from hicache.testing.report.comparison_page import difference, render_comparison
from hicache.testing.report.matrix import Status
from hicache.tests.kit.page_reader import Reader
from hicache.tests.kit.suite_runs import HOSTILE, execution, record

SOUND = record(
    execution("KEY-1"),
    execution("KEY-1", configuration="full/page1/lru"),
    execution("LOCK-2"),
    execution("LOCK-3", outcome=Outcome.FAILED, reason="expected 1, got 2", name="test_four"),
    implementation="package.cache:Sound",
)
BROKEN = record(
    execution("KEY-1"),
    execution("KEY-1", configuration="full/page1/lru", outcome=Outcome.FAILED, reason=f"long\nstory\n{HOSTILE}"),
    execution("KEY-1", configuration="full/page3/lru", outcome=Outcome.FAILED, reason=f"brief {HOSTILE}"),
    execution("LOCK-2", outcome=Outcome.KNOWN_FAILURE, reason="bug: a lock is lost\nexpected 1", name="test_two"),
    execution(
        "LOCK-2", "LOCK-3", outcome=Outcome.KNOWN_FAILURE, reason="future: no locks\nexpected 2", name="test_two"
    ),
    execution("MATCH-3", outcome=Outcome.SKIPPED, reason=f"no SWA {HOSTILE}", name="test_three"),
    implementation=f"package.cache:Broken{HOSTILE}",
)


@pytest.fixture
def comparison() -> Comparison:
    return compare({"sound/run.json": SOUND, "broken/run.json": BROKEN}, CONTRACT)


def clause_of(comparison: Comparison, name: str) -> ComparedClause:
    """The row of a clause."""
    return next(one for one in comparison.clauses if one.clause.id == name)


def statuses(comparison: Comparison) -> Iterator[tuple[str, list[Status]]]:
    """How each clause stands with each implementation."""
    return ((one.clause.id, [result.cell.status for result in one.results]) for one in comparison.clauses)


def test_each_clause_stands_as_it_does_with_each_implementation(comparison: Comparison) -> None:
    found = dict(statuses(comparison))
    expected = {
        "KEY-1": [Status.PASSED, Status.FAILED],
        "LOCK-2": [Status.PASSED, Status.KNOWN_FAILURE],
        "LOCK-3": [Status.FAILED, Status.KNOWN_FAILURE],
        "MATCH-3": [Status.NOT_EXECUTED, Status.SKIPPED],
    }
    assert found == expected, f"expected {expected}, got {found}"


def test_tests_are_counted_over_all_configurations(comparison: Comparison) -> None:
    sound, broken = (dict(result.cell.executions) for result in clause_of(comparison, "KEY-1").results)
    assert sound == {"passed": 2}, f"two configurations, got {sound}"
    assert broken == {"passed": 1, "failed": 2}, f"three configurations, got {broken}"


def test_a_clause_differs_where_it_holds_for_one_and_fails_for_another(comparison: Comparison) -> None:
    differing = [one.clause.id for one in comparison.clauses if one.differs]
    assert differing == ["KEY-1", "LOCK-2"], f"what was skipped or never ran differs from nothing, got {differing}"
    assert difference(comparison).endswith("2 of 4"), f"got {difference(comparison)!r}"


def test_a_test_that_fails_is_told_once_by_its_shortest_failure(comparison: Comparison) -> None:
    findings = [one for one in comparison.implementations[1].findings if one.status is Status.FAILED]
    assert len(findings) == 1, f"one test failed in two configurations, got {findings}"
    assert findings[0].test == "conformance/test_file.py::test_one", f"got {findings[0].test}"
    assert findings[0].shortest.configuration == "full/page3/lru", f"the brief one, got {findings[0].shortest}"
    assert findings[0].configurations == ("full/page1/lru", "full/page3/lru"), f"got {findings[0].configurations}"
    numbers = [result.finding for result in clause_of(comparison, "KEY-1").results]
    assert numbers == [0, 1], f"the clause leads to the finding of the second, got {numbers}"


def test_what_is_known_to_fail_is_told_once_for_each_reason(comparison: Comparison) -> None:
    findings = [one for one in comparison.implementations[1].findings if one.status is Status.KNOWN_FAILURE]
    reasons = [one.shortest.reason for one in findings]
    assert reasons == ["bug: a lock is lost\nexpected 1", "future: no locks\nexpected 2"], f"got {reasons}"
    statuses = [one.status for one in comparison.implementations]
    assert statuses == [Status.FAILED, Status.FAILED], f"what is known does not hide what is not, got {statuses}"


def test_a_run_in_which_only_what_is_known_fails_has_not_passed() -> None:
    known = record(execution("KEY-1"), execution("KEY-2", outcome=Outcome.KNOWN_FAILURE, reason="bug: x"))
    statuses = [one.status for one in compare({"known.json": known}, CONTRACT).implementations]
    assert statuses == [Status.KNOWN_FAILURE], f"got {statuses}"


@pytest.mark.parametrize(
    ("files", "names", "expected"),
    [
        (("x/run.json", "y/run.json"), ("m:A", "m:B"), ["A", "B"]),
        (("x/run.json", "y/run.json"), ("m:A", "n:A"), ["A (x)", "A (y)"]),
        (("x/one.json", "x/two.json"), ("m:A", "m:A"), ["A (x/one.json)", "A (x/two.json)"]),
    ],
)
def test_no_two_implementations_have_one_name(
    files: tuple[str, ...], names: tuple[str, ...], expected: list[str]
) -> None:
    runs = {file: record(implementation=name) for file, name in zip(files, names, strict=True)}
    found = [one.name for one in compare(runs, CONTRACT).implementations]
    assert found == expected, f"expected {expected}, got {found}"


def test_an_unknown_clause_is_refused_with_the_file() -> None:
    with pytest.raises(ConfigurationError, match=r"^old\.json: .*'KEY-99'"):
        compare({"new.json": SOUND, "old.json": record(execution("KEY-99"))}, CONTRACT)


def test_the_page_is_well_formed_and_its_links_lead_to_what_failed(comparison: Comparison) -> None:
    page = Reader(render_comparison(comparison, CONTRACT))
    assert not page.mismatches, f"tags that do not match: {page.mismatches}"
    assert "script" not in {tag for tag, _ in page.elements}, "a message became a script"
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), f"an id stands twice in {sorted(filter(None, ids))}"
    links = {attributes["href"] for tag, attributes in page.elements if tag == "a" and "href" in attributes}
    expected = {"#failure-1-1", "#failure-2-1", "#failure-2-2", "#failure-2-3"}
    assert links == expected, f"each failed cell leads to a failure: expected {expected}, got {links}"
    assert {str(link)[1:] for link in links}.issubset(ids), f"{links} lead to none of {ids}"


def test_the_page_tells_what_each_fails_and_did_not_run(comparison: Comparison) -> None:
    text = " ".join(Reader(render_comparison(comparison, CONTRACT)).text.split())
    for expected in (
        "2 failed, 1 passed",
        "passes for one implementation and fails for another",
        "Failures of Sound 1 failure, 0 known failures",
        "2 failures, 2 known failures; each test is shown once, with its shortest message",
        "pytest 'conformance/test_file.py::test_one[full/page3/lru]'",
        CONTRACT["KEY-1"].sentence,
        "bug: a lock is lost",
        "bug: a lock is lost expected 1",
        "Not run by Sound 0 tests skipped",
        "1 test skipped",
        "MATCH-3 1",
        "clauses not executed",
        "python 3.10.1 3.10.1",
    ):
        assert expected in text, f"the page does not say {expected!r}: {text}"
    assert "story" not in text, "of two failures of one test the longer is told"


def test_one_run_can_be_shown_alone() -> None:
    page = Reader(render_comparison(compare({"run.json": SOUND}, CONTRACT), CONTRACT))
    assert not page.mismatches, f"tags that do not match: {page.mismatches}"


def test_the_same_runs_give_the_same_page(comparison: Comparison) -> None:
    pages = {render_comparison(comparison, CONTRACT) for _ in range(2)}
    assert len(pages) == 1, "the page differs from time to time"
