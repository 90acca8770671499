"""MUTANTS: the rows of `mutants.toml`, one defect each: what is changed, and the test of a suite that finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hicache.config import read_table
from hicache.testing.plugin.options import DEFAULT_ADAPTER
from hicache.tests.proof.changed_source import Change

TABLE = Path(__file__).with_name("mutants.toml")

QUICK = "--hicache-quick"

SEARCH = ("--hypothesis-profile", "hicache-quick", "--hypothesis-seed", "0")
"""The options of a search that tries the same examples each time."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "conformance/storage": ("--hicache-backend", "hf3fs"),
    "conformance": (QUICK,),
    "accuracy": (),
    "properties": (*SEARCH, "--hicache-known-failures", "hicache/tests/proof/broken_on_purpose.toml"),
}
"""The options of pytest that a row has by default, by the folder of its test."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect. `source`: an issue or pull request in which it was seen, or ours. `defect`: what it does wrong.

    `clauses`: those that it breaks. `test`: finds it, by its path from the root of the checkout. `message`: a regular
    expression for the reason of its failure. `adapter`: of the cache that is changed. `options`: of pytest.
    `quick_test`: a test of the quick profile that finds it, where the profile leaves `test` out. `full_only`: why there
    is none.
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
    quick_test: str
    full_only: str

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


def _mutant(*, test: str, clauses: list[str], changes: list[list[str]], **fields: str) -> Mutant:
    folder = test.partition("::")[0].rpartition("/")[0]
    defaults = {"source": "ours", "message": clauses[0], "adapter": DEFAULT_ADAPTER, "quick_test": "", "full_only": ""}
    options = fields.pop("options", OPTIONS[folder])
    return Mutant(
        **defaults | fields,
        clauses=tuple(clauses),
        changes=tuple(Change(*change) for change in changes),
        test=test,
        options=tuple(options),
    )


MUTANTS = read_mutants()

BY_SLUG = {mutant.slug: mutant for mutant in MUTANTS}
