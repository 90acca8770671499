"""The pages of a report: complete, well-formed, and unmoved by whatever a failure's message holds."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hicache.testing.contract import CONTRACT
from hicache.testing.report import Outcome, RunRecord, write_report
from hicache.tests.kit.page_reader import Reader
from hicache.tests.kit.suite_runs import HOSTILE, execution, record


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


def test_the_page_is_well_formed_and_holds_no_markup_of_a_message(report: Path) -> None:
    page = Reader((report / "report.html").read_text(encoding="utf-8"))
    assert not page.mismatches, f"tags that do not match: {page.mismatches}"
    tags = {tag for tag, _ in page.elements}
    assert "script" not in tags, "a message became a script"
    assert "</pre><script>alert(1)</script>" in page.text, "the message is not shown as it is"


def test_the_page_needs_nothing_from_elsewhere(report: Path) -> None:
    page = Reader((report / "report.html").read_text(encoding="utf-8"))
    addresses = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "xlink:href") and not (value or "").startswith(("#", "data:"))
    ]
    assert not addresses, f"the page refers to {addresses}"
    assert "@import" not in page.text, "the style sheet imports another"


def test_links_within_the_page_lead_somewhere_and_ids_are_unique(report: Path) -> None:
    page = Reader((report / "report.html").read_text(encoding="utf-8"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids)), f"an id stands twice in {sorted(filter(None, ids))}"
    links = {str(attributes["href"])[1:] for tag, attributes in page.elements if tag == "a" and "href" in attributes}
    assert links == {"failure-1"}, f"the failed cell leads to the failure, got {links}"
    assert links.issubset(ids), f"links {links} lead to none of {ids}"


def test_the_page_tells_what_happened(report: Path) -> None:
    text = " ".join(Reader((report / "report.html").read_text(encoding="utf-8")).text.split())
    for expected in (
        "1 test failed; 1 clause failed",
        CONTRACT["LOCK-2"].sentence,
        "pytest 'conformance/test_file.py::test_<three>$[full/page16/lru]'",
        "no SWA MATCH-3 MATCH-4 2",
        "42 operations",
        "python 3.10.1",
    ):
        assert expected in text, f"the page does not say {expected!r}"


def test_every_status_is_said_in_words_not_only_in_colour(report: Path) -> None:
    page = (report / "report.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td class=.*?</td>", page, flags=re.DOTALL)
    marked = [cell for cell in cells if 'class="mark' in cell]
    assert len(marked) == 6, f"six clauses and configurations were executed, got {marked}"
    silent = [cell for cell in marked if '<span class="hidden">' not in cell]
    assert not silent, f"cells without a word: {silent}"


def test_without_a_passed_test_the_verdict_is_not_a_pass(tmp_path: Path) -> None:
    page = write_report(record(execution("KEY-1", outcome=Outcome.SKIPPED, reason="x")), tmp_path)
    text = Reader(page.read_text(encoding="utf-8")).text
    assert "No test passed, so nothing was verified" in text, "a run without a passed test must say so"


def test_an_empty_run_can_be_reported(tmp_path: Path) -> None:
    page = Reader(write_report(record(), tmp_path).read_text(encoding="utf-8"))
    assert not page.mismatches, f"tags that do not match: {page.mismatches}"


def test_the_replays_beside_the_report_become_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "replay.svg").write_text("<svg/>")
    (tmp_path / "replay-host.svg").write_text("<svg></svg>")
    page = Reader(write_report(record(execution("KEY-1")), tmp_path).read_text(encoding="utf-8"))
    images = [attributes["src"] for tag, attributes in page.elements if tag == "img"]
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
    assert properties == {"clause": "LOCK-2", "configuration": "full/page16/lru", "operations": "7"}
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
        "## Failed: conformance/test\\_file.py::test\\_\\<three\\>$",
        "| KEY | 1 |",
        "| no SWA | MATCH-3 MATCH-4 | 2 |",
    ):
        assert expected in text, f"{expected!r} is not in {text}"


def test_the_same_run_gives_the_same_bytes(report: Path, tmp_path: Path) -> None:
    again = write_report(mixed_run(), tmp_path).parent
    for name in ("run.json", "report.html", "report.md", "junit.xml"):
        assert (again / name).read_bytes() == (report / name).read_bytes(), f"{name} differs from run to run"
