"""ViolationError: the error of a clause that does not hold, with the clause, the place, what was expected and found."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from hicache.errors import InvariantError

_MAX_HANDLE = 60
"""The longest text of a handle in a message, in characters."""

_HANDLES = frozenset({"device_anchor", "best_match", "node", "ticket", "request"})
"""The fields of results that are handles. A handle can be a prefix of thousands of tokens."""


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
    return ViolationError(clause, place, shown(expected), shown(actual))


def shown(value: object) -> str:
    """The text of a value for a message, in which the handles of results are cut."""
    if not is_dataclass(value) or isinstance(value, type):
        return str(value)
    parts = ((one.name, getattr(value, one.name)) for one in fields(value))
    texts = (f"{name}={handle_text(part) if name in _HANDLES else repr(part)}" for name, part in parts)
    return f"{type(value).__name__}({', '.join(texts)})"


def handle_text(handle: object) -> str:
    """The beginning of a handle, and how long its text is."""
    text = repr(handle)
    return text if len(text) <= _MAX_HANDLE else f"{text[:_MAX_HANDLE]}... ({len(text):,} characters)"
