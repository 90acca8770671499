"""Options: reads what a backend was told, and names what it cannot be told."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from hicache.errors import ConfigurationError


class Options:
    """The options of one backend. Methods raise ConfigurationError, naming the backend, the option and the value."""

    def __init__(self, backend: str, given: Mapping[str, Any], known: Collection[str]) -> None:
        self._backend = backend
        self._given = given
        for name, value in given.items():
            if name not in known:
                names = " ".join(sorted(known))
                raise ConfigurationError(
                    f"storage backend {backend!r} has no option {name!r}, which is {value!r}; known: {names}"
                )

    def text(self, name: str) -> str:
        """A string that is not empty. It has to be given."""
        value = self._given.get(name)
        return value if isinstance(value, str) and value else self.refuse(name, value, "a text that is not empty")

    def optional_text(self, name: str) -> str | None:
        """A string that is not empty, or None where nothing is given."""
        return None if self._given.get(name) is None else self.text(name)

    def count(self, name: str) -> int:
        """A positive integer. It has to be given."""
        value = self._given.get(name)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return value if is_count else self.refuse(name, value, "a positive integer")  # type: ignore[return-value]

    def optional_count(self, name: str) -> int | None:
        """A positive integer, or None where nothing is given."""
        return None if self._given.get(name) is None else self.count(name)

    def flag(self, name: str, default: bool) -> bool:
        """A bool."""
        value = self._given.get(name, default)
        return value if isinstance(value, bool) else self.refuse(name, value, "true or false")

    def number(self, name: str, default: float, most: float) -> float:
        """A number from 0 to `most`."""
        value = self._given.get(name, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
        return float(value) if is_number else self.refuse(name, value, f"a number from 0 to {most}")

    def whole(self, name: str, default: int) -> int:
        """An integer that is 0 or more."""
        value = self._given.get(name, default)
        is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return int(value) if is_whole else self.refuse(name, value, "an integer that is 0 or more")

    def table(self, name: str) -> Mapping[str, Any]:
        """A table; empty where nothing is given."""
        value = self._given.get(name, {})
        return value if isinstance(value, Mapping) else self.refuse(name, value, "a table")

    def function(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """Something to call."""
        value: Callable[..., Any] | None = self._given.get(name, default)
        return value if callable(value) else self.refuse(name, value, "a function")

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        """Raise."""
        found = "nothing" if value is None else f"{value!r} ({type(value).__name__})"
        raise ConfigurationError(
            f"storage backend {self._backend!r}, option {name!r}: got {found}, expected {expected}"
        )
