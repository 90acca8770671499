"""ViolationError: the error of a clause that does not hold, with the clause, the place, what was expected and found."""

from __future__ import annotations

from hicache.errors import InvariantError


class ViolationError(InvariantError):
    """A clause that does not hold. `clause`: its id. The message names all four."""

    def __init__(self, clause: str, place: str, expected: str, actual: str) -> None:
        super().__init__(f"{clause}: {place}: expected {expected}, got {actual}")
        self.clause = clause
        self.place = place
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[type[ViolationError], tuple[str, str, str, str]]:
        """Pickle by the four values, so that the error of another process keeps its clause."""
        return type(self), (self.clause, self.place, self.expected, self.actual)


def violation(clause: str, place: str, expected: object, actual: object) -> ViolationError:
    """The error to raise when a clause is violated."""
    return ViolationError(clause, place, str(expected), str(actual))
