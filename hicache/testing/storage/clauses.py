"""The clauses that apply to a storage backend alone."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.testing.contract import CONTRACT, Clause

BACKEND_CLAUSES: Mapping[str, Clause] = {
    clause_id: CONTRACT[clause_id]
    for clause_id in (
        "KEY-2",
        *(f"STORE-{number}" for number in range(1, 12)),
        *("SEC-4", "SEC-5", "SEC-6"),
    )
}
"""In the order of the contract. STORE-10 and SEC-4 are executed for a backend with the project's metadata service."""
