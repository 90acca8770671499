"""`hicache report compare`: what it shows, what it writes, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from hicache.cli.app import app
from hicache.testing.report import Outcome, RunRecord, write_run
from hicache.tests.kit.suite_runs import HOSTILE, execution, record

SOUND = record(execution("KEY-1"), execution("KEY-2"), implementation="package.cache:Sound")
BROKEN = record(
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
    sound, broken = written(tmp_path / "sound", SOUND), written(tmp_path / "broken", BROKEN)
    code, output = run_app(sound, broken)
    assert code == 0, f"a failure in a report is no failure of the command: expected 0, got {code}: {output}"
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
    assert "KEY-2" not in output, f"what nobody fails is left to the page: {output}"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "broken", tmp_path / "sound"], "no page was asked for"


def test_the_page_goes_where_it_is_told_to(tmp_path: Path) -> None:
    sound, broken = written(tmp_path / "sound", SOUND), written(tmp_path / "broken", BROKEN)
    page = tmp_path / "a folder" / "comparison.html"
    code, output = run_app(sound.parent, broken.parent, "--html", page)
    assert code == 0, f"the folders of reports are as good as their files: expected 0, got {code}: {output}"
    assert f"page: {page}" in output, f"the last line names the page: {output}"
    assert page.read_text(encoding="utf-8").count('id="failure-2-') == 7, "all failures stand in the page"


@pytest.mark.parametrize("text", [None, "{", "[]", '{"schema_version": 99}'])
def test_a_report_that_cannot_be_read_is_named(tmp_path: Path, text: str | None) -> None:
    sound, other = written(tmp_path / "sound", SOUND), tmp_path / "other.json"
    if text is not None:
        other.write_text(text)
    code, output = run_app(sound, other, "--html", tmp_path / "comparison.html")
    assert code == 2, f"expected 2, got {code}: {output}"
    assert "other.json" in output, f"the file is named: {output}"
    assert not (tmp_path / "comparison.html").exists(), "no page of half of the runs"


def test_a_report_of_another_catalogue_is_named(tmp_path: Path) -> None:
    other = written(tmp_path / "other", record(execution("KEY-99")))
    code, output = run_app(other)
    assert code == 2, f"expected 2, got {code}: {output}"
    assert f"{other}: " in output, f"the file is named: {output}"
    assert "KEY-99" in output, f"the clause is named: {output}"


def test_without_runs_it_is_a_usage_error() -> None:
    code, output = run_app()
    assert code == 2, f"expected 2, got {code}: {output}"
