"""The tables of mutants fit the code: each text is there once, and each clause and each test exists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hicache.testing.contract import CONTRACT
from hicache.tests.proof.changed_source import ChangeError
from hicache.tests.proof.kit_mutants import KitMutant, read_kit_mutants, source_file
from hicache.tests.proof.mutant_table import MUTANTS, Mutant

ROOT = Path(__file__).parents[3]

SOURCE = re.compile(r"ours|[A-Za-z-]+#\d+")


TABLES: Mapping[str, Sequence[Mutant | KitMutant]] = {"mutants.toml": MUTANTS, "kit_mutants.toml": read_kit_mutants()}


@pytest.mark.parametrize("table", TABLES)
def test_each_change_of_a_mutant_applies_to_one_place(table: str) -> None:
    wrong: list[str] = []
    for mutant in TABLES[table]:
        files = {change.module: source_file(ROOT, change.module) for change in mutant.changes}
        sources = {module: file.read_text(encoding="utf-8") for module, file in files.items()}
        for change in mutant.changes:
            try:
                sources[change.module] = change.applied(sources[change.module])
            except ChangeError as error:
                wrong.append(f"{mutant.slug}: {error}")
        for module, source in sources.items():
            compile(source, module, "exec", dont_inherit=True)
    assert not wrong, f"the code has changed: adapt the rows of hicache/tests/proof/{table}\n" + "\n".join(wrong)


@pytest.mark.parametrize("table", TABLES)
def test_each_mutant_names_a_test(table: str) -> None:
    for mutant in TABLES[table]:
        path, _, name = mutant.test.partition("[")[0].partition("::")
        tests = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in tests, f"{mutant.slug}: {path} has no test {name}"


def test_each_mutant_names_its_source_and_clauses() -> None:
    for mutant in MUTANTS:
        assert set(mutant.clauses) <= CONTRACT.keys(), f"{mutant.slug}: the contract has no clause {mutant.clauses}"
        assert mutant.clauses, f"{mutant.slug}: expected the clauses that it breaks"
        assert SOURCE.fullmatch(mutant.source), f"{mutant.slug}: a source is {SOURCE.pattern}, got {mutant.source}"
        re.compile(mutant.message)
