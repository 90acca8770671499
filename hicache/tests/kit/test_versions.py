"""The versions of interface, contract and known failures: each has its note in the documentation, and each report."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.errors import ConfigurationError
from hicache.testing.adapter import INTERFACE_VERSION
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT, CONTRACT_VERSION
from hicache.testing.plugin.known_failures import KNOWN_FAILURES_FORMAT, VERSIONS
from hicache.testing.plugin.session import undeclared_recency
from hicache.testing.report import RunRecord, Versions, merge_runs, read_run, write_report
from hicache.testing.report.comparison import compare, contract_difference
from hicache.testing.report.pages import render_comparison
from hicache.tests.kit.frozen_adapter import FrozenAdapter
from hicache.tests.kit.html_page import HtmlPage
from hicache.tests.kit.suite_runs import FLAT_CACHE, execution, record, run_recorded, write_suite

NOTES = Path(__file__).parents[3] / "docs" / "reference" / "versions.md"

FROZEN = f"{FrozenAdapter.__module__}:{FrozenAdapter.__name__}"

OLD, NEW = Versions(interface=1, contract=1, known_failures=1), Versions(interface=3, contract=4, known_failures=5)


def made_with(versions: Versions, name: str = "test_one") -> RunRecord:
    return replace(
        record(execution("KEY-1", name=name), implementation=f"m:With{versions.contract}"), versions=versions
    )


@pytest.mark.parametrize(
    ("table", "version"),
    [
        ("interface", INTERFACE_VERSION),
        ("contract", CONTRACT_VERSION),
        ("known failures", KNOWN_FAILURES_FORMAT),
    ],
)
def test_each_version_has_its_note(table: str, version: int) -> None:
    head = re.escape(f"| {table} | what changed | what to do |")
    rows = re.search(rf"^{head}\n\|[-|]+\|\n((?:\|.*\n)+)", NOTES.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows is not None, f"docs/reference/versions.md: no table of the versions of {table}"
    numbers = [row.split("|")[1].strip() for row in rows[1].splitlines()]
    found, expected = [number for number in numbers if number], [str(number) for number in range(version, 0, -1)]
    assert found == expected, f"docs/reference/versions.md, {table}: expected a row for each of {expected}, got {found}"


def test_a_run_has_the_versions_of_this_kit(pytester: pytest.Pytester) -> None:
    write_suite(pytester, '@clause("KEY-1")\ndef test_one(): ...\n')
    found = run_recorded(pytester, "--hicache-adapter", FLAT_CACHE)
    expected = Versions(INTERFACE_VERSION, CONTRACT_VERSION, KNOWN_FAILURES_FORMAT)
    assert found.versions == VERSIONS == expected, f"expected {expected}, got {found.versions} and {VERSIONS}"


def test_every_report_has_the_versions(tmp_path: Path) -> None:
    page = HtmlPage(write_report(made_with(NEW), tmp_path).read_text(encoding="utf-8"))
    environment = page.part("Environment").rows()
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    properties = ET.parse(tmp_path / "junit.xml").iter("property")  # noqa: S314 - it was written here
    by_name = {one.get("name"): one.get("value") for one in properties}
    for name, version in (("adapter interface", "3"), ("contract", "4"), ("format of known failures", "5")):
        assert [name, f"version {version}"] in environment, f"report.html has no {name} {version}: {environment}"
        assert f"| {name} | {version} |" in markdown, f"report.md has no {name} {version}: {markdown}"
        assert by_name.get(name) == version, f"junit.xml: expected {name} {version}, got {by_name}"
    assert read_run(tmp_path / "run.json").versions == NEW, "run.json has the versions of the run"


def test_runs_with_different_versions_are_not_merged() -> None:
    older = replace(made_with(OLD, name="test_two"), implementation="m:With4")
    with pytest.raises(ConfigurationError, match=r"different versions of the kit: .*contract=1.*contract=4"):
        merge_runs([made_with(NEW), older])
    merged = merge_runs([made_with(NEW), made_with(NEW, name="test_two")])
    assert merged.versions == NEW, f"expected the versions of both runs, got {merged.versions}"


def test_a_comparison_says_when_contracts_differ(tmp_path: Path) -> None:
    expected = "different versions of the contract, so a clause can ask for something else in each: With1 1, With4 4"
    comparison = compare({"old.json": made_with(OLD), "new.json": made_with(NEW)}, CONTRACT)
    page = HtmlPage(render_comparison(comparison, CONTRACT))
    assert expected in contract_difference(comparison), f"got {contract_difference(comparison)!r}"
    assert expected in page.one("header").one("b").text, f"the page does not say so: {page.one('header').text}"
    assert ["contract", "version 1", "version 4"] in page.part("Environment").rows(), "the page lists both versions"
    folders = [tmp_path / "old", tmp_path / "new"]
    for folder, versions in zip(folders, (OLD, NEW), strict=True):
        write_report(made_with(versions), folder)
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["report", "compare", *map(str, folders)])
    assert result.exit_code == 0, f"such runs can be compared: expected 0, got {result.exit_code}: {result.output}"
    assert expected in " ".join(result.output.split()), f"the command does not say that they differ: {result.output}"


def test_a_comparison_says_nothing_of_one_contract() -> None:
    other = replace(NEW, interface=1, known_failures=1)
    comparison = compare({"one.json": made_with(NEW), "two.json": made_with(other)}, CONTRACT)
    assert not contract_difference(comparison), f"one contract, yet {contract_difference(comparison)!r}"
    header = HtmlPage(render_comparison(comparison, CONTRACT)).one("header")
    assert not header.all("b"), f"the page says so: {header.text}"


def test_an_adapter_from_before_an_optional_part_runs_unchanged() -> None:
    suites = ("conformance/test_match.py", "conformance/test_requests.py", "conformance/test_reuse.py")
    options = ("-k", "mamba", "--hicache-quick", "-q", "-p", "no:cacheprovider", "--hicache-adapter", FROZEN)
    command = [sys.executable, "-m", "pytest", *suites, "properties/test_machines.py", *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=NOTES.parents[2], check=False)
    assert done.returncode == 0, f"pytest ended with {done.returncode}: {done.stdout[-4000:]}{done.stderr}"
    shown = [line for line in done.stdout.splitlines() if line.startswith("recency")]
    assert shown == ["recency: path (not declared)"], f"expected the recency that was assumed, got {shown}"
    assert not undeclared_recency(ReferenceAdapter), "the reference declares its recencies"
