"""`hicache accuracy`: what it refuses before it opens a model, and what it shows of the passes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from typer import Exit
from typer.testing import CliRunner

from hicache.cli import accuracy
from hicache.cli.app import app
from hicache.cli.command import say_table


def refused(*options: str) -> str:
    result = CliRunner().invoke(app, ["accuracy", "--model", "hybrid", *options], env={"COLUMNS": "400"})
    assert result.exit_code == 2, f"expected a usage error, got {result.exit_code}: {result.output}"
    return result.output


def test_another_dtype_is_refused() -> None:
    told = refused("--dtype", "float16")
    assert "unknown dtype float16; known: float32, bfloat16" in told, f"expected the known dtypes, got {told}"


def test_what_runs_models_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "LIBRARIES", ("not_a_module",))
    assert "pip install 'hicache[accuracy]'" in refused(), "expected the command that installs it"


def test_a_release_of_transformers_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "LIBRARIES", ())
    monkeypatch.setattr("hicache.testing.requirements.version", lambda _: "4.57.6")
    assert "transformers 4.57.6 is not supported" in refused(), "expected the release that is installed"


def test_a_cache_of_one_rank_is_not_asked_on_two() -> None:
    told = refused("--ranks", "2", "--adapter", "hicache.testing.caches.dictionary:DictionaryAdapter")
    assert "does not declare RANKS" in told, f"expected what the adapter lacks, got {told}"


def measured(name: str, score: float, hits: int, parts: Mapping[str, Any]) -> Any:
    """The figures of a pass or of a task in it."""
    tiers = SimpleNamespace(device=hits, host=2 * hits, storage=0, total=3 * hits)
    scores = {"recall acc": score}
    forwards = SimpleNamespace(forwards=4, tokens=1000, padding=hits)
    figures = {
        "forwards": forwards,
        "mean_nats": 1e-3,
        "max_nats": 2e-3,
        "seconds": 0.5,
        "wait_share": None,
        "problems": (),
        "computed_tokens": 0,
        "tokens_by_nats": {"0": 1},
    }
    return SimpleNamespace(name=name, scores=scores, hits=tiers, parts=parts, **figures)


def test_each_pass_and_each_task_in_it_has_its_figures() -> None:
    passes = [
        measured(name, score, hits, {"recall": measured(name, score, hits, {})})
        for name, score, hits in (("first", 1.0, 0), ("device", 1.0, 8), ("host", 0.5, 1500))
    ]
    nats = ["1.0e-03", "2.0e-03", "0.50"]
    tiers = {
        "first": ["0", "0", "0", "4", "1,000", "0"],
        "device": ["8", "16", "0", "4", "1,000", "8"],
        "host": ["1,500", "3,000", "0", "4", "1,000", "1,500"],
    }
    of_passes = [
        ["first", "", *tiers["first"]],
        ["device", "same", *tiers["device"]],
        ["host", "differ", *tiers["host"]],
    ]
    of_tasks = [["recall", "first", "acc 1.0000"], ["", "device", "acc 1.0000"], ["", "host", "acc 0.5000"]]
    expected = [[*row, *nats, ""] for row in of_passes]
    assert rows(accuracy._pass_table(passes)) == expected, (
        f"expected {expected}, got {rows(accuracy._pass_table(passes))}"
    )
    expected = [[*row, *tiers[row[1]], *nats] for row in of_tasks]
    assert rows(accuracy._task_table(passes)) == expected, (
        f"expected {expected}, got {rows(accuracy._task_table(passes))}"
    )


@pytest.mark.parametrize(
    ("hits", "code", "told"),
    [
        ({"recall": 0, "copying": 0}, 1, "no task was tested"),
        ({"recall": 0, "copying": 8}, 0, "recall: nothing was tested: its prompts had no hit in any pass"),
        ({"recall": 8, "copying": 8}, 0, None),
    ],
    ids=["no task", "one of two", "all"],
)
def test_a_task_without_hits_is_not_said_to_agree(
    hits: Mapping[str, int], code: int, told: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    parts = {name: measured("host", 1.0, count, {}) for name, count in hits.items()}
    passes = [measured(name, 1.0, sum(hits.values()), parts) for name in ("first", "host")]
    given = exit_code(lambda: accuracy._report(passes, "title", {}, tmp_path))
    assert given == code, f"{hits}: expected exit code {code}, got {given}"
    shown, page = capsys.readouterr().out, (tmp_path / "accuracy.html").read_text(encoding="utf-8")
    assert (told or "") in shown, f"expected {told!r}, got {shown}"
    untested = [name for name, count in hits.items() if not count]
    for text in (shown, page):
        named = [name for name in hits if f"{name}: nothing was tested" in text]
        assert named == untested, f"expected {untested} as not tested, got {named}"
    is_vacuous = len(untested) == len(hits)
    assert ("No task was tested" in page) == is_vacuous, f"{hits}: expected the verdict, got {page}"
    assert ("agrees with the first<br>" in page) != is_vacuous, f"{hits}: expected the verdict, got {page}"


def exit_code(report: Callable[[], None]) -> int:
    """The exit code of a command that ends with this report."""
    try:
        report()
    except Exit as end:
        return end.exit_code
    return 0


@pytest.mark.parametrize("width", [40, 80, 110, 400])
def test_no_cell_of_a_table_is_cut_whatever_the_width(width: int) -> None:
    name = "2 ranks: lost pages of a prompt"
    hits = 123_456_789
    passes = [measured(one, 0.5, hits, {"recall": measured(one, 0.5, hits, {})}) for one in ("first", name)]
    for table in (accuracy._pass_table(passes), accuracy._task_table(passes)):
        written = StringIO()
        say_table(Console(file=written, width=width), table)
        shown = written.getvalue()
        lines = [re.split("[│┃]", line) for line in shown.splitlines() if line[0] in "│┃"]
        cells = [[cell.strip() for cell in line[1:-1]] for line in lines]
        headings = [str(column.header) for column in table.columns]
        assert cells == [headings, *rows(table)], f"in {width} columns: expected every cell on one line, got {shown}"


def rows(table: Table) -> list[list[Any]]:
    """The cells of a table, row by row."""
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]
