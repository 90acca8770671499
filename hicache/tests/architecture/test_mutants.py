"""The table of mutants fits the code: each text is there once, and each clause and each test exists."""

from __future__ import annotations

import re
from pathlib import Path

from hicache.testing.contract import CONTRACT
from hicache.tests.proof.changed_source import ChangeError
from hicache.tests.proof.mutant_table import MUTANTS

ROOT = Path(__file__).parents[3]

SOURCE = re.compile(r"ours|[A-Za-z-]+#\d+")


def source_of(module: str) -> str:
    """The text of a module of the checkout."""
    return (ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")


def test_each_change_of_a_mutant_applies_to_one_place() -> None:
    wrong: list[str] = []
    for mutant in MUTANTS:
        sources = {change.module: source_of(change.module) for change in mutant.changes}
        for change in mutant.changes:
            try:
                sources[change.module] = change.applied(sources[change.module])
            except ChangeError as error:
                wrong.append(f"{mutant.slug}: {error}")
        for module, source in sources.items():
            compile(source, module, "exec", dont_inherit=True)
    assert not wrong, "the code has changed: adapt the rows of hicache/tests/proof/mutants.toml\n" + "\n".join(wrong)


def test_each_mutant_names_its_source_clauses_and_a_test() -> None:
    for mutant in MUTANTS:
        path, _, name = mutant.test.partition("[")[0].partition("::")
        assert set(mutant.clauses) <= CONTRACT.keys(), f"{mutant.slug}: the contract has no clause {mutant.clauses}"
        assert mutant.clauses, f"{mutant.slug}: expected the clauses that it breaks"
        assert SOURCE.fullmatch(mutant.source), f"{mutant.slug}: a source is {SOURCE.pattern}, got {mutant.source}"
        tests = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in tests, f"{mutant.slug}: {path} has no test {name}"
        re.compile(mutant.message)
