"""Accepted: the values that passed a pure check, and the result of each, so that none is checked twice."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")

LIMIT = 1 << 13
"""The number of values that are kept. All are dropped when one more comes: a test repeats what it did just before."""


class Accepted(Generic[Result]):
    """Results of a check that depends on nothing but a value. A value that fails is checked again each time."""

    def __init__(self) -> None:
        self._results: dict[Hashable, Result] = {}

    def __contains__(self, value: Hashable) -> bool:
        return value in self._results

    def add(self, value: Hashable, result: Result) -> None:
        """Keep the result of a value that passed."""
        if len(self._results) >= LIMIT:
            self._results.clear()
        self._results[value] = result

    def result(self, value: Hashable, check: Callable[[], Result]) -> Result:
        """What `check` returns for this value, which it is asked for once. Raises what `check` raises."""
        found = self._results.get(value)
        if found is None:
            found = check()
            self.add(value, found)
        return found
