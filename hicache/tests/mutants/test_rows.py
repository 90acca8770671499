"""The tables of mutants name what there is: clauses of the contract, and tests of the suites."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hicache.testing.contract import CONTRACT
from hicache.testing.mutants.accuracy import rows as accuracy
from hicache.testing.mutants.accuracy.unseen import UNSEEN, Unseen
from hicache.testing.mutants.rows import ROWS, Row

ROOT = Path(__file__).parents[3]

SOURCE = r"ours|[A-Za-z-]+#\d+"

BY_SUITE = {"distributed_tests": ROWS, "accuracy": accuracy.ROWS}

each_row = pytest.mark.parametrize(
    ("suite", "row"),
    [pytest.param(suite, row, id=row.slug) for suite, rows in BY_SUITE.items() for row in rows],
)


def defines(test: str) -> bool:
    """Whether there is a test function of this name, whatever it is run over."""
    path, _, name = test.partition("[")[0].partition("::")
    return bool(re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE))


@each_row
def test_a_row_names_clauses_a_source_and_a_test(suite: str, row: Row) -> None:
    assert set(row.clauses) <= CONTRACT.keys(), f"{row.slug}: the contract has no clause {row.clauses}"
    assert re.fullmatch(SOURCE, row.source), f"{row.slug}: a source is {SOURCE}, got {row.source}"
    assert defines(f"{suite}/{row.test}"), f"{row.slug}: {suite} has no test {row.test}"


@pytest.mark.parametrize("suite", BY_SUITE)
def test_no_mutant_stands_in_a_table_twice(suite: str) -> None:
    slugs, adapters = ([getattr(row, name) for row in BY_SUITE[suite]] for name in ("slug", "adapter"))
    assert len({*slugs}) == len({*adapters}) == len(slugs), f"{suite}: expected each once, got {slugs}, {adapters}"


@pytest.mark.parametrize("unseen", UNSEEN, ids=lambda unseen: unseen.source)
def test_what_no_model_sees_is_found_elsewhere(unseen: Unseen) -> None:
    assert re.fullmatch(SOURCE, unseen.source), f"a source is {SOURCE}, got {unseen.source}"
    assert defines(unseen.test), f"{unseen.source}: {unseen.defect}: there is no test {unseen.test}"
