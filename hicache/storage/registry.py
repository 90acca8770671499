"""open_backend: opens a backend by its name, by an entry point, or as `module:Class`; Options: reads its options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NoReturn

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend


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


ENTRY_POINTS = "hicache.storage"
"""The group in which a package of its own announces its backends."""

BACKENDS: Mapping[str, str] = {
    "memory": "hicache.storage.memory:MemoryStorage",
    "file": "hicache.storage.file:FileStorage",
    "slotfile": "hicache.storage.slotfile.backend:SlotFileStorage",
    "hf3fs": "hicache.storage.hf3fs.backend:Hf3fsStorage",
    "audited": "hicache.storage.wrappers:AuditedStorage",
    "faulty": "hicache.storage.wrappers:FaultyStorage",
    "metered": "hicache.storage.wrappers:MeteredStorage",
}
"""The names of our own. The last three wrap another backend, their option `inner`."""


def open_backend(name: str, scope: str, options: Mapping[str, Any]) -> StorageBackend:
    """Open a scope of a backend.

    `name`: of ours, else of an entry point, else `module:Class`. Raises ConfigurationError for a name that leads to
    none, saying which are known, and for options that the backend refuses.
    """
    return backend_class(name)(scope, options)


def backend_class(name: str) -> type[StorageBackend]:
    """The class that a name stands for. Raises ConfigurationError."""
    found = _load(name, _place(name))
    if not (isinstance(found, type) and issubclass(found, StorageBackend)):
        raise ConfigurationError(f"storage backend {name!r} is {found!r}, and no subclass of StorageBackend")
    return found


def _place(name: str) -> str:
    """Where the class of a backend is, as `module:Class`."""
    place = BACKENDS.get(name, name)
    if _is_place(place):
        return place
    # Every installed package is asked, which takes milliseconds.
    announced = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    place = announced.get(name, name)
    if not _is_place(place):
        known = ", ".join([*BACKENDS, *sorted(announced)])
        raise ConfigurationError(f"storage backend {name!r} is unknown; known: {known}, or any `module:Class`")
    return place


def _is_place(name: str) -> bool:
    module, colon, attribute = name.partition(":")
    return bool(module and colon and attribute)


def _load(name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    try:
        found = import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"storage backend {name!r} at {place}: {error}") from error
    else:
        return found
