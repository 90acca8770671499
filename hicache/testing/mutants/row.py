"""Row: a mutant, where its defect was seen, and the test that finds it."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.testing.adapter import CacheAdapter


@dataclass(frozen=True, slots=True)
class Row:
    """One defect. `source`: an issue or pull request in which it was seen, or ours.

    `clauses`: those that it breaks. `test`: of the suite that the table is for, which finds it. `told`: a regular
    expression for what the failure says, which names the clause, and the rank and the call where a collective is
    concerned.
    """

    slug: str
    source: str
    clauses: tuple[str, ...]
    adapter: type[CacheAdapter]
    test: str
    told: str
