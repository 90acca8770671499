"""A few cells of the matrix, and its table. `tox -e misbehaviour` runs all of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hicache.cli.stage import suite_folder
from hicache.cli.verify import STAGES as STAGES_OF_VERIFY
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.plugin.failures import VERBS
from hicache.tests.proof.misbehaviour.adapters import KINDS, OPEN
from hicache.tests.proof.misbehaviour.cells import STAGES, TOLD, Cell, cells, run_cell

SAMPLE = (
    ("replay", "segfault", "match"),
    ("replay", "fork", OPEN),
    ("conformance", "exit0", "advance_clock"),
)
"""One cell takes some ten seconds. hicache/tests/kit/test_misbehaving.py has all kinds, in a small suite."""


def cell(stage: str, kind: str, verb: str) -> Cell:
    """The cell of this name."""
    return next(one for one in cells(stage) if (one.kind, one.verb) == (kind, verb))


@pytest.mark.parametrize("name", SAMPLE, ids="-".join)
def test_a_cell_ends_as_a_failure_that_names_it(name: tuple[str, str, str], tmp_path: Path) -> None:
    found = run_cell(cell(*name), tmp_path)
    assert not found.problems, f"{found.cell}: {found.problems}:\n{(tmp_path / '0' / 'output').read_text()}"


def test_the_table_has_every_stage_and_every_verb() -> None:
    assert STAGES == STAGES_OF_VERIFY, f"expected the stages of hicache verify, got {STAGES}"
    assert KINDS.keys() == TOLD.keys(), "the expected message of each kind has to be known"
    by_stage = {stage: {one.verb for one in cells(stage)} for stage in STAGES}
    missing = set(VERBS) - by_stage["conformance"]
    assert not missing, f"the conformance suite calls every verb: {missing} are in no cell"
    unknown = {verb for verbs in by_stage.values() for verb in verbs} - {OPEN, *dir(ReferenceAdapter)}
    assert not unknown, f"the reference has no verb {unknown}"


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "replay"])
def test_the_tests_of_the_table_exist(stage: str) -> None:
    defined = {
        node.name
        for path in suite_folder(stage).glob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    named = {one.keyword.split(" ")[0] for one in cells(stage)}
    assert named <= defined, f"{stage} has no test {named - defined}"
