"""Each cache that is broken on purpose fails the test that is named for it: by name, within its time."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from hicache.parallel.group import Reduction
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.testing.contract import CONTRACT
from hicache.testing.mutants.opening import NumbersAnywhere
from hicache.testing.mutants.rows import ROWS, Row
from hicache.tests.parallel import test_torch_group

ROOT = Path(__file__).parents[3]
SUITE = "distributed_tests"

BOUND_S = 120
"""For one run on a busy machine; it takes a few seconds."""


def run(adapter: type[CacheAdapter], tests: Iterable[str], bound_s: float) -> tuple[int, str]:
    """The exit code and the words of a run of the suite on a cache."""
    arguments = ["-q", "-p", "no:cacheprovider", "--adapter", f"{adapter.__module__}:{adapter.__qualname__}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, *(f"{SUITE}/{test}" for test in tests)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=bound_s,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_mutant_is_found_by_name_and_not_by_a_hang(row: Row) -> None:
    code, words = run(row.adapter, [row.test], BOUND_S)
    assert code == pytest.ExitCode.TESTS_FAILED, f"{row.slug} ({row.source}) passes {row.test}:\n{words}"
    assert re.search(row.told, words), f"{row.slug}: expected to be told {row.told!r}, got:\n{words}"
    waits = [wait for wait in ("did not come to call", "had not ended within") if wait in words]
    assert not waits, f"{row.slug}: RANK-8: expected it to be told at once, got {waits} in:\n{words}"


def test_the_reference_passes_what_finds_the_mutants() -> None:
    tests = sorted({row.test for row in ROWS})
    code, words = run(ReferenceAdapter, tests, BOUND_S * len(tests))
    assert code == pytest.ExitCode.OK, f"expected {tests} to pass, got {code}:\n{words}"
    assert f"{len(tests)} passed" in words, f"expected none of {tests} to be skipped, got:\n{words}"


def test_numbers_that_lie_anywhere_are_found_where_the_group_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_torch_group, "TorchGroup", NumbersAnywhere)
    with pytest.raises(AssertionError, match=r"RANK-3: the group's device is cuda:1: .* got .*cpu"):
        test_torch_group.test_every_collective_gets_a_tensor_of_the_groups_device(
            lambda group: group.reduce([3, -4], Reduction.MIN, "progress"), monkeypatch
        )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.slug)
def test_a_row_names_clauses_of_the_contract(row: Row) -> None:
    assert set(row.clauses) <= CONTRACT.keys(), f"{row.slug}: the contract has no clause {row.clauses}"
    sources = ("ours", "sglang#")
    assert row.source.startswith(sources), f"{row.slug}: a source is one of {sources}, got {row.source}"
