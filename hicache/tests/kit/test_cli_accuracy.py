"""`hicache accuracy`: what it refuses before it opens a model, and what it shows of the passes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from hicache.cli import accuracy
from hicache.cli.app import app


def refused(*options: str) -> str:
    result = CliRunner().invoke(app, ["accuracy", "--model", "hybrid", *options], env={"COLUMNS": "400"})
    assert result.exit_code == 2, f"expected a usage error, got {result.exit_code}: {result.output}"
    return result.output


def test_another_dtype_is_refused() -> None:
    assert "unknown dtype 'float16'; known: float32, bfloat16" in refused("--dtype", "float16")


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


def test_of_a_later_pass_the_scores_that_differ_are_shown() -> None:
    first, other = (SimpleNamespace(scores={"recall acc": 1.0, "copying acc": score}) for score in (0.5, 0.25))
    told = [accuracy._scores(one, first) for one in (first, other, SimpleNamespace(scores=dict(first.scores)))]
    expected = ["recall acc 1.0000\ncopying acc 0.5000", "copying acc 0.2500", "same"]
    assert told == expected, f"expected {expected}, got {told}"
