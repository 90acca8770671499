"""The error of a violated law: the clause, the place, what was expected and what was found."""

from __future__ import annotations

from hicache.errors import InvariantError


def violation(clause: str, place: str, expected: object, actual: object) -> InvariantError:
    """The error to raise when a clause is violated."""
    return InvariantError(f"{clause}: {place}: expected {expected}, got {actual}")


def clause_of(error: InvariantError) -> str:
    """The clause id that a violation names."""
    return str(error).partition(":")[0]
