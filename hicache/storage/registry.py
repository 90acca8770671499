"""open_backend: opens a backend by its name, by an entry point, or as `module:Class`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend

ENTRY_POINTS = "hicache.storage"
"""The group in which a package of its own announces its backends."""

BACKENDS: Mapping[str, str] = {
    "memory": "hicache.storage.memory:MemoryStorage",
    "file": "hicache.storage.file:FileStorage",
    "slotfile": "hicache.storage.slotfile:SlotFileStorage",
    "hf3fs": "hicache.storage.hf3fs.backend:Hf3fsStorage",
    "audited": "hicache.storage.audited:AuditedStorage",
    "faulty": "hicache.storage.faulty:FaultyStorage",
    "metered": "hicache.storage.metered:MeteredStorage",
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
