"""The clauses to which a storage backend alone can be held."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.testing.contract import CONTRACT, Clause

BACKEND_CLAUSES: Mapping[str, Clause] = {
    clause_id: CONTRACT[clause_id]
    for clause_id in (
        "KEY-2",
        *(f"STORE-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 11)),
        *("SEC-5", "SEC-6"),
    )
}
"""In the catalogue's order. STORE-10 speaks of the metadata of one engine, SEC-4 of servers."""
