"""MUTANTS: the rows of `mutants.toml`, one defect each: what is changed, and the test of a suite that finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hicache.config import read_table
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.tests.proof.changed_source import Change

TABLE = Path(__file__).with_name("mutants.toml")

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "conformance/storage": ("--hicache-backend", "hf3fs"),
    "conformance": ("--hicache-quick",),
    "accuracy": (),
}
"""The options of pytest that a row has by default, by the folder of its test."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect. `source`: an issue or pull request in which it was seen, or ours. `defect`: what it does wrong.

    `clauses`: those that it breaks. `test`: finds it, by its path from the root of the checkout. `message`: a regular
    expression for the reason of its failure. `adapter`: of the cache that is changed. `options`: of pytest.
    """

    slug: str
    source: str
    defect: str
    clauses: tuple[str, ...]
    changes: tuple[Change, ...]
    test: str
    message: str
    adapter: str
    options: tuple[str, ...]

    @property
    def where(self) -> str:
        """The table, by its path from the root of the checkout."""
        return "hicache/tests/proof/mutants.toml"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of pytest."""
        return (self.test, "--hicache-adapter", self.adapter, *self.options)


def read_mutants(path: Path = TABLE) -> tuple[Mutant, ...]:
    """The rows of a table. Raises TypeError for a field that is missing or unknown."""
    return tuple(_mutant(slug=slug, **row) for slug, row in read_table(path).items())


def _mutant(
    *, test: str, clauses: list[str], changes: list[list[str]], adapter: str = DEFAULT_ADAPTER, **fields: str
) -> Mutant:
    options = fields.pop("options", OPTIONS[test.partition("::")[0].rpartition("/")[0]])
    return Mutant(
        **fields,
        clauses=tuple(clauses),
        changes=tuple(Change(*change) for change in changes),
        test=test,
        adapter=adapter,
        options=tuple(options),
    )


MUTANTS = read_mutants()

BY_SLUG = {mutant.slug: mutant for mutant in MUTANTS}
