"""Reports: the matrix of a run, merged and compared runs, their pages, and `hicache report compare`."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.contract import CONTRACT
from hicache.testing.report import Execution, Outcome, RunRecord, merge_runs, write_report, write_run
from hicache.testing.report.comparison import ComparedClause, Comparison, compare, difference
from hicache.testing.report.coverage import coverage
from hicache.testing.report.matrix import Matrix, Row, Status, build_matrix, overview
from hicache.testing.report.pages import render_comparison, render_html
from hicache.testing.report.run import Evidence, Step
from hicache.tests.kit.html_page import HtmlPage
from hicache.tests.kit.suite_runs import HOSTILE, execution, record


def row(matrix: Matrix, clause: str) -> Row:
    """The row of a clause."""
    return next(row for section in matrix.sections for row in section.rows if row.clause.id == clause)


MATRICES = {
    "KEY-1@16 passed": "KEY-1 passed: passed",
    "KEY-1@16 passed, KEY-1@16 passed": "KEY-1 passed: passed",
    "HOST-1@16 skipped": "HOST-1 skipped: skipped",
    "KEY-1@16 passed, KEY-1@16 skipped": "KEY-1 passed in part: passed in part",
    "KEY-1@16 skipped, KEY-1@16 known failure, KEY-1@16 passed": "KEY-1 known failure: known failure",
    "KEY-1@16 passed, KEY-1@16 known failure, KEY-1@16 failed, KEY-1@16 skipped": "KEY-1 failed: failed",
    "KEY-1@1 passed, KEY-1@16 failed, KEY-2@1 passed": (
        "KEY-1 failed: passed/failed, KEY-2 passed: passed/not executed"
    ),
    # A configuration that was skipped as a whole says nothing of a clause that ran elsewhere.
    "KEY-1@1 passed, KEY-1@16 skipped, KEY-2@16 skipped, KEY-3@1 passed, KEY-3@ skipped": (
        "KEY-1 passed: not executed/passed/skipped, KEY-2 skipped: not executed/not executed/skipped, "
        "KEY-3 passed in part: skipped/passed/not executed"
    ),
}
"""Executions, each a clause, a page size or no configuration, and an outcome; the status of each clause and cell."""


@pytest.mark.parametrize(("ran", "expected"), MATRICES.items())
def test_the_worst_execution_decides(ran: str, expected: str) -> None:
    executions = []
    for one in ran.split(", "):
        place, _, outcome = one.partition(" ")
        clause, _, size = place.partition("@")
        configuration = f"full/page{size}/lru" if size else ""
        executions.append(execution(clause, configuration=configuration, outcome=Outcome(outcome.replace(" ", "_"))))
    matrix = build_matrix(record(*executions), CONTRACT)
    rows = [row(matrix, clause) for clause in dict.fromkeys(one.clauses[0] for one in executions)]
    found = ", ".join(
        f"{one.clause.id} {one.status.value}: {'/'.join(cell.status.value for cell in one.cells)}" for one in rows
    )
    assert found == expected, f"{ran}: expected {expected}, got {found}"


def test_every_clause_has_a_row_in_the_order_of_the_catalogue() -> None:
    matrix = build_matrix(record(execution("KEY-1")), CONTRACT)
    found = {row.clause.id: row.status for section in matrix.sections for row in section.rows}
    expected = dict.fromkeys(CONTRACT, Status.NOT_EXECUTED) | {"KEY-1": Status.PASSED}
    assert list(found.items()) == list(expected.items()), f"what never ran is not executed, got {found}"
    assert matrix.counts[Status.PASSED] == 1, f"only KEY-1 ran, got {matrix.counts}"
    assert sum(matrix.counts.values()) == len(CONTRACT), f"each clause counts once, got {matrix.counts}"
    names = [section.name for section in matrix.sections]
    assert len(names) == len(set(names)), f"a section stands twice in {names}"


def test_configurations_are_in_an_order_that_people_expect() -> None:
    expected = (
        "",
        "full/page1/lru",
        "full/page3/lru",
        "full/page16/fifo",
        "full/page16/lru",
        "full/page16/lru/bigram",
        "full/page64/lru",
        "full+mamba/page1/lru",
        "full+swa/page1/lru",
        "full+swa+mamba/page1/lru",
    )
    matrix = build_matrix(record(*(execution("KEY-1", configuration=name) for name in sorted(expected))), CONTRACT)
    assert matrix.configurations == expected, f"expected {expected}, got {matrix.configurations}"


def test_executions_environments_and_the_earliest_start_are_kept() -> None:
    one = record(execution("KEY-1"), started="2026-01-02T10:00:00+00:00")
    other = record(execution("KEY-1", suite="properties"), started="2026-01-02T09:00:00+00:00")
    other = replace(other, environment={"python": "3.11.0", "torch": "2.4"})
    expected = replace(
        other,
        executions=(*one.executions, *other.executions),
        environment={"python": "3.10.1, 3.11.0", "torch": "2.4"},
    )
    assert merge_runs([one, other]) == expected, f"expected {expected}, got {merge_runs([one, other])}"
    assert merge_runs([one]) == one, f"a single run does not change: expected {one}, got {merge_runs([one])}"


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


TWICE = record(execution("KEY-1", name="test_twice"))
UNKNOWN = record(execution("KEY-99"))

REFUSED: Mapping[str, tuple[Callable[[], object], str]] = {
    "an unknown clause": (lambda: build_matrix(UNKNOWN, CONTRACT), r"test_one.*'KEY-99'"),
    "an unknown clause of a file": (
        lambda: compare({"new.json": SOUND, "old.json": UNKNOWN}, CONTRACT),
        r"^old\.json: .*'KEY-99'",
    ),
    "no run": (lambda: merge_runs([]), "no run"),
    "implementations": (
        lambda: merge_runs([record(implementation="a:A"), record(implementation="b:B")]),
        r"a:A.*b:B",
    ),
    "capabilities": (lambda: merge_runs([record(), replace(record(), capabilities=("HOST",))]), "HOST"),
    "one execution twice": (lambda: merge_runs([TWICE, TWICE]), r"test_twice.*two runs"),
}


@pytest.mark.parametrize(("act", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_shown_or_merged_is_refused(act: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        act()


def mixed_run() -> RunRecord:
    """Every outcome, with arbitrary text wherever a run can hold some."""
    return record(
        execution("KEY-1"),
        execution("KEY-1", configuration="full+swa/page16/lru", name="test_two"),
        execution("LOCK-2", outcome=Outcome.FAILED, reason=f"first line\n{HOSTILE}", name="test_<three>$"),
        execution("LOCK-3", outcome=Outcome.KNOWN_FAILURE, reason=f"bug: {HOSTILE}", name="test_four"),
        execution("MATCH-3", outcome=Outcome.SKIPPED, reason="no SWA", name="test_five"),
        execution("MATCH-4", outcome=Outcome.SKIPPED, reason="no SWA", name="test_six"),
        implementation=f"package:{HOSTILE}",
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(mixed_run(), tmp_path_factory.mktemp("report")).parent


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return compare({"sound/run.json": SOUND, "broken/run.json": BROKEN}, CONTRACT)


@pytest.fixture(scope="module")
def page(report: Path) -> HtmlPage:
    """The page of a run."""
    return HtmlPage((report / "report.html").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def compared(comparison: Comparison) -> HtmlPage:
    """The page of a comparison."""
    return HtmlPage(render_comparison(comparison, CONTRACT))


@pytest.mark.parametrize("kind", ["report", "comparison"])
def test_a_page_is_whole_and_self_contained_and_its_links_lead_somewhere(
    report: Path, comparison: Comparison, kind: str
) -> None:
    of_run = (report / "report.html").read_text(encoding="utf-8")
    source = of_run if kind == "report" else render_comparison(comparison, CONTRACT)
    page = HtmlPage(source)
    assert not page.mismatches, f"tags that do not match: {page.mismatches}"
    elements = [one.attributes for one in page.walk()]
    ids = [one["id"] for one in elements if "id" in one]
    assert len(ids) == len(set(ids)), f"an id stands twice in {sorted(ids)}"
    addresses = [one[name] for one in elements for name in ("src", "href", "xlink:href") if name in one]
    outside = [one for one in addresses if not one.startswith(("#", "data:"))]
    assert not outside, f"the page refers to {outside}"
    assert "@import" not in page.one("style").text, "the style sheet imports another"
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", source, re.DOTALL)
    assert [attributes for attributes, _ in scripts] == [""], f"expected the script of the filters alone, got {scripts}"
    digest = base64.b64encode(hashlib.sha256(scripts[0][1].encode()).digest()).decode()
    (policy,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    allowed = re.findall("script-src ([^;]*)", policy.attributes["content"])
    assert allowed == [f"'sha256-{digest}'"], f"the policy allows the script and no other: {policy.attributes}"
    named = {one.text: page.target(one) for one in page.all("a", kind="id")}
    found = {name: row.attributes.get("data-clause") for name, row in named.items()}
    assert found == {name: name for name in named}, f"a clause leads to the row of another: {found}"
    expected = {"LOCK-2", "MATCH-3", "MATCH-4"} if kind == "report" else {"KEY-1", "LOCK-2", "LOCK-3"}
    assert expected <= named.keys(), f"these are named: {sorted(named)}"
    for link in page.all("a"):
        if link.attributes["href"].startswith("#"):
            page.target(link)
    scrolling = [one.attributes for one in page.all(kind="scroll")]
    assert scrolling, "the page has tables that scroll"
    silent = [own for own in scrolling if own.get("tabindex") != "0" or not own.get("aria-label")]
    assert not silent, f"these cannot be reached by keyboard, or have no name: {silent}"


def test_the_matrix_folds_by_section_and_names_every_clause(page: HtmlPage) -> None:
    groups = {one.attributes["id"]: "open" in one.attributes for one in page.all("details", kind="section")}
    sections = [f"section-{name}" for name in dict.fromkeys(one.partition("-")[0] for one in CONTRACT)]
    assert list(groups) == sections, f"expected the sections {sections}, got {list(groups)}"
    assert groups["section-LOCK"], "the section of a broken clause is folded"
    assert not groups["section-KEY"], "a section in which nothing failed is open"
    rows = {one.attributes["data-clause"]: one for one in page.all("tr") if "data-clause" in one.attributes}
    assert list(rows) == list(CONTRACT), f"clauses without a row: {set(CONTRACT) - set(rows)}"
    boxes = {one.attributes["value"] for one in page.all("input", type="checkbox")}
    statuses = {one.attributes["data-status"] for one in rows.values()}
    assert boxes == statuses, f"statuses {statuses}, filters {boxes}"
    for clause in CONTRACT.values():
        head = rows[clause.id].one("th")
        told = [head.one("span", kind="title").text, head.all("p")[0].text]
        assert told == [clause.title, " ".join(clause.sentence.split())], f"{clause.id} says {told}"


def test_each_clause_that_is_named_outside_of_the_matrix_leads_into_it(page: HtmlPage) -> None:
    outside = [one.text for one in page.all("a", kind="id") if not page.target(one).inside("details", kind="section")]
    assert not outside, f"the rows of {outside} are not in the matrix"
    silent = [one.text for one in page.all("span", kind="id") if one.text in CONTRACT and not one.all("a")]
    of_rows = [one.text for one in page.all("span", kind="id") if one.inside("th", kind="clause")]
    assert silent == of_rows, "each id outside of the matrix is a link"
    marked = [cell for cell in page.all("td") if cell.all("i", kind="mark") and cell.inside("table", "matrix")]
    assert len(marked) == 6, f"six clauses and configurations were executed, got {len(marked)}"
    silent = [cell.text for cell in marked if not cell.all("span", kind="hidden")]
    assert not silent, f"cells that show their status by colour alone: {silent}"


def test_the_page_begins_with_the_verdict_the_levels_and_one_share(page: HtmlPage) -> None:
    found = coverage(overview(mixed_run(), CONTRACT))
    header = page.one("header")
    assert header.one("p", kind="verdict").text == "✗ 1 clause broken: LOCK-2 in 1 test", f"got {header.text}"
    levels = [one.text for one in header.one("ul", kind="levels").all("li")]
    assert levels == [str(one) for one in found.levels], f"expected each level, got {levels}"
    assert header.one(id="share").text == f"{found}.", f"got {header.one(id='share').text}"
    every = sum(found.applying.values())
    tiles = [[one.one("b").text, one.one("span").text] for one in page.one("div", kind="counts").all("div")]
    of_clauses = [(int(count), words) for count, words in tiles if "clauses" in words]
    assert sum(count for count, _ in of_clauses) == every, f"the counts do not add up to {every}: {tiles}"
    assert all(f"of {every} clauses" in words for _, words in of_clauses), f"another denominator in {tiles}"
    rest = [int(count) for count, words in tiles if "operations" in words]
    assert rest == [42], f"expected the operations of 6 tests, got {tiles}"
    assert page.headings()[:2] == ["Causes of failures", "Clauses by configuration"], f"got {page.headings()}"


EVIDENCE = Evidence(
    steps=(Step("allocate", "16", "[16..31]"), Step("lock", "Node 1", "Receipt 1"), Step("unlock", HOSTILE, "None")),
    before="root",
    after="root\n└─ 0..16",
    traceback="",
)


def test_the_failing_step_is_marked_and_all_steps_are_seen_without_scrolling() -> None:
    reason = "hicache.ViolationError: LOCK-2: node 0..16: expected 1 lock, got none"
    failed = replace(execution("LOCK-2", outcome=Outcome.FAILED, reason=reason), evidence=EVIDENCE)
    page = HtmlPage(render_html(overview(record(failed), CONTRACT), CONTRACT, {}))
    cause = page.one(id="cause-1")
    assert page.target(cause.one("h3").one("a")).attributes["id"] == "LOCK-2", "the cause leads to its clause"
    assert not cause.inside(kind="scroll"), "the cause scrolls in itself"
    assert not cause.all(kind="scroll"), "the steps of a cause scroll in themselves"
    steps = cause.one("table", kind="steps")
    verbs = [row.one("code").text for row in steps.one("tbody").all("tr")]
    assert verbs == ["allocate", "lock", "unlock"], f"got {verbs}"
    (marked,) = steps.all("tr", kind="failing")
    assert marked.one("code").text == "unlock", f"expected the last step to be marked, got {marked.text}"
    assert marked.one("span", kind="hidden").text == "failed", "the mark has no word"
    parts = {one.one("dt").text: one.one("dd").text for one in cause.one("dl").all("div")}
    assert parts == {"at": "node 0..16", "expected": "1 lock", "got": "none"}, f"got {parts}"
    summaries = [one.one("summary").text for one in cause.all("details") if one.all("pre")][1:3]
    assert [one.partition(" a node")[0] for one in summaries] == [
        "The tree before the last call",
        "The tree after the last call",
    ], f"got {summaries}"


def test_each_part_of_the_page_has_what_happened(page: HtmlPage) -> None:
    cause = page.one(id="cause-1")
    cells = [page.target(one).attributes["id"] for one in page.one(id="LOCK-2").all("a")]
    assert cells == ["cause-1"], f"the failed cell leads to the cause, got {cells}"
    message, command = (one.text for one in cause.all("pre"))
    assert "</pre><script>alert(1)</script>" in message, f"the message is not shown verbatim: {message}"
    assert command == "pytest 'conformance/test_file.py::test_<three>$[full/page16/lru]'", f"got {command}"
    assert cause.all("p")[0].text == CONTRACT["LOCK-2"].sentence, f"got {cause.all('p')[0].text}"
    reasons = page.part("Skipped").rows()
    assert ["no SWA", "MATCH-3 MATCH-4", "2"] in reasons, f"got {reasons}"
    assert ["python", "3.10.1"] in page.part("Environment").rows(), f"got {page.part('Environment').rows()}"


def test_the_bars_of_the_charts_are_as_long_as_what_they_show() -> None:
    executions = [
        execution("KEY-1", outcome=Outcome.FAILED, name="test_slow", duration_s=2.0),
        execution("KEY-2", name="test_fast", duration_s=0.5),
        execution("KEY-3", name="test_of_no_duration", duration_s=0.0),
    ]
    run = replace(record(*executions), capabilities=tuple(one.name for one in Capability))
    page = HtmlPage(render_html(overview(run, CONTRACT), CONTRACT, {}))
    (keys,) = [row for row in page.one("table", kind="bars").all("tr") if row.one("th").text == "KEY"]
    bars = [(one.attributes["class"], one.attributes["style"], one.text) for one in keys.all("span")]
    rest = str(sum(name.startswith("KEY-") for name in CONTRACT) - len(executions))
    expected = [("passed", "flex: 2", "2"), ("failed", "flex: 1", "1"), ("not-executed", f"flex: {rest}", rest)]
    assert sorted(bars) == sorted(expected), f"expected {expected}, got {bars}"
    timed = page.one("ol", kind="timed").all("li")
    found = [(one.one("b").text, one.one("div").attributes["style"]) for one in timed]
    assert found == [("2.00 s", "width: 100.0%"), ("0.50 s", "width: 25.0%")], f"got {found}"
    assert ["test_slow" in timed[0].text, "test_fast" in timed[1].text] == [True, True], f"got {timed}"


WAITING = execution("LOCK-2", outcome=Outcome.SKIPPED, reason="no", lacks=("SNAPSHOT",), name="test_two")

HEADERS = {
    "nothing passed": (
        [execution("KEY-1", outcome=Outcome.SKIPPED, reason="x")],
        "· No test passed, so nothing was verified",
    ),
    "a test waits": (
        [execution("KEY-1"), WAITING],
        "next for level device: declare SNAPSHOT (1 method): 1 more clause.",
    ),
    "nothing ran": ([], "· No test passed, so nothing was verified"),
}


@pytest.mark.parametrize(("executions", "told"), HEADERS.values(), ids=HEADERS)
def test_the_page_begins_with(executions: list[Execution], told: str) -> None:
    page = HtmlPage(render_html(overview(record(*executions), CONTRACT), CONTRACT, {}))
    assert not page.mismatches, f"tags that do not match: {page.mismatches}"
    header = [one.text for one in page.one("header").all("p")]
    assert told in header, f"expected {told!r}, got {header}"


def test_the_replays_beside_the_report_become_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "replay.svg").write_text("<svg/>")
    (tmp_path / "replay-host.svg").write_text("<svg></svg>")
    page = HtmlPage(write_report(record(execution("KEY-1")), tmp_path).read_text(encoding="utf-8"))
    images = [one.attributes["src"] for one in page.all("figure", kind="wide") for one in one.all("img")]
    expected = [f"data:image/svg+xml;base64,{picture}" for picture in ("PHN2Zy8+", "PHN2Zz48L3N2Zz4=")]
    assert images == expected, f"expected both pictures, got {images}"


def test_junit_is_well_formed_and_complete(report: Path) -> None:
    root = ET.parse(report / "junit.xml").getroot()  # noqa: S314 - a file of our own
    counts = {name: root.get(name) for name in ("tests", "failures", "skipped", "errors")}
    expected = {"tests": "6", "failures": "1", "skipped": "3", "errors": "0"}
    assert counts == expected, f"expected {expected}, got {counts}"
    case = next(case for case in root.iter("testcase") if case.find("failure") is not None)
    assert case.get("classname") == "conformance/test_file.py", f"got {case.attrib}"
    assert case.get("name") == "test_<three>$[full/page16/lru]", f"got {case.attrib}"
    properties = {one.get("name"): one.get("value") for one in case.iter("property")}
    expected = {"clause": "LOCK-2", "cause": "LOCK-2", "configuration": "full/page16/lru", "operations": "7"}
    assert properties == expected, f"expected {expected}, got {properties}"
    text = case.findtext("failure") or ""
    for part in ('<b>1</b> & "2"', r"\x00red", r"\ud800", "]]>", "é", r"\ufffe", "replay: pytest"):
        assert part in text, f"{part!r} is not in {text!r}"


def test_markdown_shows_messages_as_text(report: Path) -> None:
    text = (report / "report.md").read_text(encoding="utf-8")
    fenced = re.findall(r"^(`{4,})\n(.*?)^\1$", text, flags=re.MULTILINE | re.DOTALL)
    assert len(fenced) == 1, f"the message's own ``` needs a longer fence, got {len(fenced)} of those"
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"(?<!\\)<", outside), f"markup outside of a fence: {outside}"
    for expected in (
        "## Failed: LOCK-2, in 1 test",
        "The smallest example is conformance/test\\_file.py::test\\_\\<three\\>$",
        "| KEY | 1 |",
        "| no SWA | MATCH-3 MATCH-4 | 2 |",
    ):
        assert expected in text, f"{expected!r} is not in {text}"


def test_the_same_runs_give_the_same_bytes(report: Path, comparison: Comparison, tmp_path: Path) -> None:
    again = write_report(mixed_run(), tmp_path).parent
    for name in ("run.json", "report.html", "report.md", "junit.xml"):
        assert (again / name).read_bytes() == (report / name).read_bytes(), f"{name} differs from run to run"
    pages = {render_comparison(comparison, CONTRACT) for _ in range(2)}
    assert len(pages) == 1, "the page differs from time to time"


def clause_of(comparison: Comparison, name: str) -> ComparedClause:
    """The row of a clause."""
    return next(one for one in comparison.clauses if one.clause.id == name)


def test_a_clause_differs_where_it_holds_for_one_and_fails_for_another(comparison: Comparison) -> None:
    found = {one.clause.id: [result.cell.status for result in one.results] for one in comparison.clauses}
    expected = {
        "KEY-1": [Status.PASSED, Status.FAILED],
        "LOCK-2": [Status.PASSED, Status.KNOWN_FAILURE],
        "LOCK-3": [Status.FAILED, Status.KNOWN_FAILURE],
        "MATCH-3": [Status.NOT_EXECUTED, Status.SKIPPED],
    }
    assert found == expected, f"expected {expected}, got {found}"
    differing = [one.clause.id for one in comparison.clauses if one.differs]
    assert differing == ["KEY-1", "LOCK-2"], f"what was skipped or never ran differs from nothing, got {differing}"
    assert difference(comparison).endswith("2 of 4"), f"got {difference(comparison)!r}"
    counts = [dict(result.cell.results) for result in clause_of(comparison, "KEY-1").results]
    assert counts == [{Status.PASSED: 2}, {Status.PASSED: 1, Status.FAILED: 2}], f"over configurations, got {counts}"


def test_a_test_that_fails_is_told_once_for_each_reason_that_is_known(comparison: Comparison) -> None:
    found = [
        (one.status, one.test.partition("::")[2], one.shortest.reason.splitlines()[0], one.configurations)
        for one in comparison.implementations[1].findings
    ]
    every = ("full/page16/lru",)
    assert found == [
        (Status.FAILED, "test_one", f"brief {HOSTILE}", ("full/page1/lru", "full/page3/lru")),
        (Status.KNOWN_FAILURE, "test_two", "bug: a lock is lost", every),
        (Status.KNOWN_FAILURE, "test_two", "future: no locks", every),
    ], f"expected the test that failed in two configurations once, by its brief failure, got {found}"
    numbers = [result.finding for result in clause_of(comparison, "KEY-1").results]
    assert numbers == [0, 1], f"the clause leads to the finding of the second, got {numbers}"
    known = record(execution("KEY-1"), execution("KEY-2", outcome=Outcome.KNOWN_FAILURE, reason="bug: x"))
    (alone,) = compare({"known.json": known}, CONTRACT).implementations
    statuses = [*(one.status for one in comparison.implementations), alone.status]
    expected = [Status.FAILED, Status.FAILED, Status.KNOWN_FAILURE]
    assert statuses == expected, f"what is known hides nothing, and has not passed: expected {expected}, got {statuses}"


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


def test_each_part_of_the_page_has_what_each_fails_and_did_not_run(compared: HtmlPage) -> None:
    failures = ["failure-1-1", "failure-2-1", "failure-2-2", "failure-2-3"]
    links = {compared.target(one).attributes["id"] for row in compared.all("td", kind="first") for one in row.all("a")}
    assert links == set(failures), f"each failed cell leads to a failure: expected {failures}, got {links}"
    folded = [one.attributes["id"] for one in compared.all("details", kind="finding")]
    assert folded == failures, f"failures that fold: {folded}"
    assert "HTMLDetailsElement" in compared.one("script").text, "the script opens what a link leads to"
    (key,) = compared.all("tr", id="KEY-1")
    assert [cell.text for cell in key.all("td")][1] == "✗ failed 1 passed, 2 failed", f"got {key.text}"
    assert key.all("p")[0].text == CONTRACT["KEY-1"].sentence, f"got {key.text}"
    titles = [one.text for one in compared.all("h2") if one.text.startswith(("Failures", "Not run by Sound"))]
    assert titles[0].startswith("Failures of Sound 1 failure, 0 known failures"), f"got {titles}"
    assert "2 failures, 2 known failures" in titles[1], f"got {titles}"
    assert titles[2].startswith("Not run by Sound 0 tests skipped"), f"got {titles}"
    first, known, other = (compared.one(id=f"failure-2-{number}") for number in (1, 2, 3))
    command = first.one("pre", kind="command").text
    assert command == "pytest 'conformance/test_file.py::test_one[full/page3/lru]'", f"got {command}"
    assert "story" not in first.text, f"of two failures of one test the longer is shown: {first.text}"
    reasons = [one.all("pre")[0].text for one in (known, other)]
    assert reasons == ["bug: a lock is lost expected 1", "future: no locks expected 2"], f"got {reasons}"
    skips = compared.part("Not run by Broken").rows()
    assert skips[1][1:] == ["MATCH-3", "1"], f"got {skips}"
    environment = compared.part("Environment").rows()
    assert ["python", "3.10.1", "3.10.1"] in environment, f"got {environment}"


def test_a_comparison_has_titles_and_can_be_filtered(comparison: Comparison, compared: HtmlPage) -> None:
    for one in comparison.clauses:
        row = compared.one("tr", id=one.clause.id)
        found = (row.attributes["data-clause"], row.attributes["data-status"], row.one("span", kind="title").text)
        assert found == (one.clause.id, one.group, one.clause.title), f"expected a row that can be found, got {found}"
    groups = [one.group for one in comparison.clauses]
    assert groups.count("differs") == 2, f"expected the clauses that differ in a group of their own, got {groups}"
    filters = {one.attributes["value"] for one in compared.one("form").all("input", type="checkbox")}
    assert filters == set(groups), f"expected a filter for each of {set(groups)}, got {filters}"
    labels = [one.attributes["data-label"] for one in compared.all("td") if "data-label" in one.attributes]
    names = ["Tests executed", "passed", "failed", "known to fail", "skipped", "Clauses passed", "Clauses"]
    assert labels == names * 2, f"on a narrow screen each number has its name: expected {names} for each, got {labels}"
    alone = HtmlPage(render_comparison(compare({"run.json": SOUND}, CONTRACT), CONTRACT))
    assert not alone.mismatches, f"one run can be shown alone: tags that do not match: {alone.mismatches}"


TWO_PASSED = record(execution("KEY-1"), execution("KEY-2"), implementation="package.cache:Sound")
SEVEN_FAILED = record(
    *(
        execution("KEY-1", outcome=Outcome.FAILED, reason=f"expected 1\n{HOSTILE}", name=f"test_{number}")
        for number in range(7)
    ),
    execution("KEY-2", outcome=Outcome.SKIPPED, reason="no namespaces"),
    implementation="package.cache:Broken[red]",
)


def written(directory: Path, run: RunRecord) -> Path:
    """The file of a run in a folder of its own."""
    directory.mkdir()
    write_run(run, directory / "run.json")
    return directory / "run.json"


def run_app(*arguments: object) -> tuple[int, str]:
    """The exit code and the output of `hicache report compare`, with single spaces."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", "compare", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_runs_are_laid_side_by_side(tmp_path: Path) -> None:
    sound, broken = written(tmp_path / "sound", TWO_PASSED), written(tmp_path / "broken", SEVEN_FAILED)
    code, output = run_app(sound, broken)
    assert code == 0, f"a failure in a report is not a failure of the command: expected 0, got {code}: {output}"
    for expected in (
        "┃ Sound ┃ Broken[red] ┃",
        "│ tests failed │ 0 │ 7 │",
        "│ clauses passed │ 2 │ 0 │",
        "│ KEY-1 │ passed │ failed │",
        "Broken[red] fails 7 tests; these are the first 5",
        "pytest 'conformance/test_file.py::test_0[full/page16/lru]'",
        "pass for one implementation and fail for another: 1 of 2",
    ):
        assert expected in output, f"it does not say {expected!r}: {output}"
    assert "KEY-2" not in output, f"a clause without failures is left to the page: {output}"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "broken", tmp_path / "sound"], "no page was asked for"


def test_the_page_goes_where_it_is_told_to(tmp_path: Path) -> None:
    sound, broken = written(tmp_path / "sound", TWO_PASSED), written(tmp_path / "broken", SEVEN_FAILED)
    page = tmp_path / "a folder" / "comparison.html"
    code, output = run_app(sound.parent, broken.parent, "--html", page)
    assert code == 0, f"the folders of reports are as good as their files: expected 0, got {code}: {output}"
    assert f"page: {page}" in output, f"the last line names the page: {output}"
    failures = HtmlPage(page.read_text(encoding="utf-8")).all("details", kind="finding")
    assert len(failures) == 7, f"all failures stand in the page, got {len(failures)}"


UNREADABLE = {
    "missing": (None, ""),
    "cut": ("{", ""),
    "a list": ("[]", ""),
    "another schema": ('{"schema_version": 99}', "99"),
    "another catalogue": (
        UNKNOWN,
        "names clause 'KEY-99'",
    ),
}


@pytest.mark.parametrize(("content", "told"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_report_that_cannot_be_read_is_named(tmp_path: Path, content: str | RunRecord | None, told: str) -> None:
    sound, other = written(tmp_path / "sound", TWO_PASSED), tmp_path / "other.json"
    if isinstance(content, RunRecord):
        write_run(content, other)
    elif content is not None:
        other.write_text(content)
    code, output = run_app(sound, other, "--html", tmp_path / "comparison.html")
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "other.json" in output, f"the file is named: {output}"
    assert told in output, f"expected {told!r} in {output}"
    assert not (tmp_path / "comparison.html").exists(), "no page of half of the runs"


def test_without_runs_it_is_a_usage_error() -> None:
    code, output = run_app()
    assert code == 2, f"expected 2, got {code}: {output}"
