"""Checks the suite: every clause about several ranks has a test."""

from __future__ import annotations

from hicache.testing.contract import CONTRACT, clause
from hicache.testing.plugin.gate import clauses_missing_in


@clause()
def test_every_clause_of_ranks_has_a_test() -> None:
    assert __package__ is not None, "the suite is a package"
    untested = clauses_missing_in(__package__, {"ranks"})
    sentences = [f"{clause_id}: {CONTRACT[clause_id].sentence}" for clause_id in untested]
    assert not untested, f"{len(untested)} clauses have no test in {__package__}:\n" + "\n".join(sentences)
