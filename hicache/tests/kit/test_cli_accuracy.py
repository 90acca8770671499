"""`hicache accuracy`: what it refuses before it opens a model, and what it shows of the passes."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from rich.table import Table
from typer.testing import CliRunner

from hicache.cli import accuracy
from hicache.cli.app import app


def refused(*options: str) -> str:
    result = CliRunner().invoke(app, ["accuracy", "--model", "hybrid", *options], env={"COLUMNS": "400"})
    assert result.exit_code == 2, f"expected a usage error, got {result.exit_code}: {result.output}"
    return result.output


def test_another_dtype_is_refused() -> None:
    told = refused("--dtype", "float16")
    assert "unknown dtype 'float16'; known: float32, bfloat16" in told, f"expected the known dtypes, got {told}"


def test_what_runs_models_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "LIBRARIES", ("not_a_module",))
    assert "pip install 'hicache[accuracy]'" in refused(), "expected to be told what to install"


def test_a_release_of_transformers_that_is_not_supported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "LIBRARIES", ())
    monkeypatch.setattr("hicache.testing.requirements.version", lambda _: "4.57.6")
    assert "transformers 4.57.6 is not supported" in refused(), "expected the release that is installed"


def test_a_cache_of_one_rank_is_not_asked_on_two() -> None:
    told = refused("--ranks", "2", "--adapter", "hicache.testing.adapters.dictionary:DictionaryAdapter")
    assert "does not declare RANKS" in told, f"expected what the adapter lacks, got {told}"


def measured(name: str, score: float, hits: int, parts: Mapping[str, Any]) -> Any:
    """The figures of a pass or of a task in it."""
    tiers = SimpleNamespace(device=hits, host=2 * hits, storage=0)
    scores = {"recall acc": score}
    forwards = SimpleNamespace(forwards=4, tokens=1000, padding=hits)
    figures = {
        "forwards": forwards,
        "mean_nats": 1e-3,
        "max_nats": 2e-3,
        "seconds": 0.5,
        "wait_share": None,
        "problems": (),
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


def rows(table: Table) -> list[list[Any]]:
    """The cells of a table, row by row."""
    return [list(row) for row in zip(*(column.cells for column in table.columns), strict=True)]
