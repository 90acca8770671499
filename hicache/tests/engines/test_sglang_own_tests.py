"""SGLang's own unit tests of its unified cache, on its cache and on the reference in its place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hicache.config import read_table
from hicache.testing.plugin.options import ENGINE_SOURCE
from hicache.tests.engines.sglang_own_tests import CACHES, FAILED, PASSED, TESTS

JUDGED: list[dict[str, Any]] = read_table(f"@{Path(__file__).with_suffix('.toml')}")["judged"]
KINDS = ("internal", "deliberate", "unsupported", "no GPU")


def source_of(config: pytest.Config) -> Path:
    """The source tree that the run names. Skips the test when it has no such tests."""
    path = ENGINE_SOURCE.text(config)
    if path is None or not (Path(path) / TESTS).is_file():
        pytest.skip(f"no source tree of SGLang with {TESTS}: {ENGINE_SOURCE.flag} PATH names one, got {path}")
    return Path(path).resolve()


def judgement(cache: str, name: str) -> str | None:
    """Why a test fails on a cache, or None when that is not written down."""
    return next((f"{one['kind']}: {one['reason']}" for one in JUDGED if is_judged(one, cache, name)), None)


def is_judged(row: dict[str, Any], cache: str, name: str) -> bool:
    """Whether a row is about a test on a cache."""
    return cache in row["caches"] and any(re.fullmatch(pattern, name) for pattern in row["tests"])


@pytest.mark.parametrize("cache", CACHES)
def test_sglangs_own_tests_pass_or_are_judged(cache: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source, lines = source_of(request.config), tmp_path / "outcomes"
    command = [sys.executable, "-m", "hicache.tests.engines.sglang_own_tests", str(source), cache, ".", str(lines)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"SGLang's tests did not run:\n{ended.stderr[-3000:]}"
    outcomes = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    passed = [name for name, outcome, _ in outcomes if outcome == PASSED]
    failed = {name: reason for name, outcome, reason in outcomes if outcome == FAILED}
    unjudged = {name: reason for name, reason in failed.items() if judgement(cache, name) is None}
    assert passed, f"no test passed on {cache}: {list(failed.items())[:3]}"
    counts = f"{len(passed)} passed, {len(failed)} failed, {len(outcomes) - len(passed) - len(failed)} skipped"
    assert not unjudged, f"{cache}: {counts}, {len(unjudged)} failed for no known reason: {unjudged}"


def test_each_judgement_has_a_kind_and_a_reason() -> None:
    wrong = [
        row for row in JUDGED if row["kind"] not in KINDS or not row["reason"] or not set(row["caches"]) <= set(CACHES)
    ]
    assert not wrong, f"kinds are {KINDS}, got {wrong}"


def test_a_test_is_judged_on_the_named_cache_alone() -> None:
    row = {"caches": ["hicache"], "tests": [r"Test_FULL_\w+\.test_a"], "kind": "internal", "reason": "reads a node"}
    assert is_judged(row, "hicache", "Test_FULL_ps1.test_a"), "its name matches"
    assert not is_judged(row, "sglang", "Test_FULL_ps1.test_a"), "another cache must pass it"
    assert not is_judged(row, "hicache", "Test_FULL_ps1.test_ab"), "a pattern is of a whole name"
