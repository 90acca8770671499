"""Fields: typed access to a table from a file. Every error names the file and the field."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hicache.errors import ConfigurationError


@dataclass(slots=True)
class RecordFields:
    """One table of a file. `prefix`: the path of the table in the file, such as `executions[3].`."""

    file: str
    prefix: str
    table: Mapping[str, Any]
    _read: set[str] = field(default_factory=set, init=False)

    def error(self, name: str, problem: str) -> ConfigurationError:
        """The error to raise about a field."""
        return ConfigurationError(f"{self.file}: {self.prefix}{name} {problem}")

    def text(self, name: str) -> str:
        """A string."""
        return self._text(name, self._take(name))

    def choice(self, name: str, known: Collection[str]) -> str:
        """One of the known strings."""
        value = self.text(name)
        if value not in known:
            raise self.error(name, f"is {value!r}, known: {', '.join(known)}")
        return value

    def integer(self, name: str) -> int:
        """An integer, zero or above. A bool is not an integer."""
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._unlike(name, value, "an integer, zero or above")
        return value

    def flag(self, name: str) -> bool:
        """A bool; False if it is missing."""
        value = self._take(name) if name in self.table else False
        if not isinstance(value, bool):
            raise self._unlike(name, value, "true or false")
        return value

    def number(self, name: str) -> float:
        """A finite number, zero or above."""
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise self._unlike(name, value, "a finite number, zero or above")
        return float(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(self._text(place, value) for place, value in self._items(name))

    def texts_by_name(self, name: str) -> dict[str, str]:
        """A table of strings."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise self._unlike(name, value, "a table")
        return {key: self._text(f"{name}.{key}", text) for key, text in value.items()}

    def fields(self, name: str) -> RecordFields:
        """A table."""
        value = self._take(name)
        if not isinstance(value, dict):
            raise self._unlike(name, value, "a table")
        return RecordFields(self.file, f"{self.prefix}{name}.", value)

    def tables(self, name: str) -> Iterator[RecordFields]:
        """A list of tables."""
        for place, value in self._items(name):
            if not isinstance(value, dict):
                raise self._unlike(place, value, "a table")
            yield RecordFields(self.file, f"{self.prefix}{place}.", value)

    def refuse_unread(self) -> None:
        """Raise ConfigurationError for the first field that was not read."""
        for name in self.table:
            if name not in self._read:
                raise self.error(name, "is unknown")

    def _take(self, name: str) -> Any:
        if name not in self.table:
            raise self.error(name, "is missing")
        self._read.add(name)
        return self.table[name]

    def _items(self, name: str) -> Iterator[tuple[str, Any]]:
        value = self._take(name)
        if not isinstance(value, list):
            raise self._unlike(name, value, "a list")
        for index, item in enumerate(value):
            yield f"{name}[{index}]", item

    def _text(self, place: str, value: Any) -> str:
        if not isinstance(value, str):
            raise self._unlike(place, value, "a string")
        return value

    def _unlike(self, place: str, value: Any, wanted: str) -> ConfigurationError:
        return self.error(place, f"is {value!r} ({type(value).__name__}), not {wanted}")
