"""open_backend: open a backend by its name, by an entry point, or as `module:Class`; Options: read its options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NoReturn

from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.storage.secrets import SECRET, concealed, redacted


class Options:
    """The options of one backend. Methods raise ConfigurationError, naming the backend, the option and the value.

    `secret`: the options whose values no message shows. If there are any, no message shows the value of an unknown
    option either: it may be one of them, misspelled.
    """

    def __init__(
        self, backend: str, given: Mapping[str, Any], known: Collection[str], secret: Collection[str] = ()
    ) -> None:
        self._backend = backend
        self._given = given
        self._secret = secret
        for name, value in given.items():
            if name not in known:
                names, shown = " ".join(sorted(known)), SECRET if secret else repr(value)
                raise ConfigurationError(
                    f"storage backend {backend!r} has no option {name!r}, which is {shown}; known: {names}"
                )

    def text(self, name: str) -> str:
        """A string that is not empty. The option is required."""
        value = self._given.get(name)
        return value if isinstance(value, str) and value else self.refuse(name, value, "a text that is not empty")

    def optional_text(self, name: str) -> str | None:
        """A string that is not empty, or None if the option is missing."""
        return None if self._given.get(name) is None else self.text(name)

    def optional_texts(self, name: str) -> list[str] | None:
        """A list of strings, or None if the option is missing."""
        value = self._given.get(name)
        if value is None or (isinstance(value, (list, tuple)) and all(isinstance(one, str) for one in value)):
            return None if value is None else list(value)
        return self.refuse(name, value, "a list of texts")

    def has(self, name: str) -> bool:
        """Whether the option is given."""
        return self._given.get(name) is not None

    def count(self, name: str) -> int:
        """A positive integer. The option is required."""
        value = self._given.get(name)
        is_count = isinstance(value, int) and not isinstance(value, bool) and value > 0
        return value if is_count else self.refuse(name, value, "a positive integer")  # type: ignore[return-value]

    def optional_count(self, name: str) -> int | None:
        """A positive integer, or None if the option is missing."""
        return None if self._given.get(name) is None else self.count(name)

    def counts(self, name: str) -> int | Mapping[str, int]:
        """A positive integer, or a table of them. The option is required."""
        value = self._given.get(name)
        if not isinstance(value, Mapping):
            return self.count(name)
        given = {f"{name}.{key}": one for key, one in value.items()}
        table = Options(self._backend, given, given)
        return {key: table.count(f"{name}.{key}") for key in value}

    def flag(self, name: str, default: bool) -> bool:
        """A bool."""
        value = self._given.get(name, default)
        return value if isinstance(value, bool) else self.refuse(name, value, "true or false")

    def optional_flag(self, name: str) -> bool | None:
        """A bool, or None if the option is missing."""
        return None if self._given.get(name) is None else self.flag(name, default=False)

    def number(self, name: str, default: float, most: float) -> float:
        """A number from 0 to `most`."""
        value = self._given.get(name, default)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= most
        return float(value) if is_number else self.refuse(name, value, f"a number from 0 to {most}")

    def seconds(self, name: str, default: float, most: float) -> float:
        """A number above 0 and up to `most`."""
        return self.number(name, default, most) or self.refuse(name, self._given.get(name), "more than 0 seconds")

    def whole(self, name: str, default: int) -> int:
        """An integer that is 0 or more."""
        value = self._given.get(name, default)
        is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return int(value) if is_whole else self.refuse(name, value, "an integer that is 0 or more")

    def table(self, name: str) -> Mapping[str, Any]:
        """A table, empty if the option is missing."""
        value = self._given.get(name, {})
        return value if isinstance(value, Mapping) else self.refuse(name, value, "a table")

    def function(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        """A callable."""
        value: Callable[..., Any] | None = self._given.get(name, default)
        return value if callable(value) else self.refuse(name, value, "a function")

    def refuse(self, name: str, value: object, expected: str) -> NoReturn:
        """Raise the error for a value that differs from what is expected."""
        shown = SECRET if name in self._secret else repr(value)
        found = "nothing" if value is None else f"{shown} ({type(value).__name__})"
        raise ConfigurationError(
            f"storage backend {self._backend!r}, option {name!r}: got {found}, expected {expected}"
        )


ENTRY_POINTS = "hicache.storage"
"""The entry point group in which other packages register their backends."""

BACKENDS: Mapping[str, str] = {
    "memory": "hicache.storage.memory:MemoryStorage",
    "file": "hicache.storage.file:FileStorage",
    "slotfile": "hicache.storage.slotfile.backend:SlotFileStorage",
    "hf3fs": "hicache.storage.hf3fs.backend:Hf3fsStorage",
    "redis": "hicache.storage.redis:RedisStorage",
    "objects": "hicache.storage.objects:ObjectStorage",
    "nixl": "hicache.storage.nixl:NixlFiles",
    "nixl-objects": "hicache.storage.nixl:NixlObjects",
    "mooncake": "hicache.storage.mooncake:MooncakeStorage",
    "audited": "hicache.storage.wrappers:AuditedStorage",
    "faulty": "hicache.storage.wrappers:FaultyStorage",
    "metered": "hicache.storage.wrappers:MeteredStorage",
}
"""The built-in backends by name. The last three wrap another backend, their option `inner`."""


def open_backend(name: str, scope: str, options: Mapping[str, Any]) -> StorageBackend:
    """Open a scope of a backend.

    `name`: of a built-in backend, else of an entry point, else `module:Class`. Raises ConfigurationError for an unknown
    name, with the known names, and for options that the backend refuses; the message shows no secret.
    """
    kind, given = backend_class(name), conceal_options(name, options)
    try:
        return kind(scope, given)
    except ConfigurationError as error:
        told = redacted(str(error))
        if told == str(error):
            raise
        # Without the error of the backend, which has the secret in its message.
        raise ConfigurationError(told) from None


def backend_class(name: str) -> type[StorageBackend]:
    """The class of a backend name. Raises ConfigurationError."""
    found = _load(name, _place(name))
    if not (isinstance(found, type) and issubclass(found, StorageBackend)):
        raise ConfigurationError(f"storage backend {name!r} is {found!r}, and no subclass of StorageBackend")
    return found


def refuse_inline_secrets(name: str, options: Mapping[str, Any], source: str) -> None:
    """Raise ConfigurationError for a secret option in JSON on a command line, which others see and runs record.

    `source`: the JSON, or `@` and the name of a file, whose contents are not recorded.
    """
    given = [] if source.startswith("@") else _secrets_of(name, options)
    if given:
        raise ConfigurationError(
            f"storage backend {name!r}, option {given[0]!r} is secret: give the options in a file, as @FILE, because "
            "others see a command, and a run records it"
        )


def conceal_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with each secret as SecretText, also those of the backend in a wrapper."""
    secret = backend_class(name).SECRET_OPTIONS
    given = {one: concealed(value) if one in secret else value for one, value in options.items()}
    inner, inside = options.get("inner"), options.get("inner_options")
    if isinstance(inner, str) and isinstance(inside, Mapping):
        given["inner_options"] = conceal_options(inner, inside)
    return given


def _secrets_of(name: str, options: Mapping[str, Any]) -> list[str]:
    """The names of the given options that are secret, also of the backend in a wrapper."""
    found = [one for one in backend_class(name).SECRET_OPTIONS if one in options]
    inner, inside = options.get("inner"), options.get("inner_options")
    return found + (_secrets_of(inner, inside) if isinstance(inner, str) and isinstance(inside, Mapping) else [])


def _place(name: str) -> str:
    """The class of a backend, as `module:Class`."""
    place = BACKENDS.get(name, name)
    if _is_place(place):
        return place
    # This reads the metadata of every installed package, which takes milliseconds.
    announced = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    place = announced.get(name, name)
    if not _is_place(place):
        known = ", ".join([*BACKENDS, *sorted(announced)])
        close = "".join(f"; did you mean {one}?" for one in get_close_matches(name, [*BACKENDS, *announced], n=1))
        raise ConfigurationError(f"storage backend {name!r} is unknown; known: {known}, or any `module:Class`{close}")
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
    except (Exception, SystemExit) as error:
        # The import runs code of the user.
        reason = f"the import raised {type(error).__name__}: {error}"
        raise ConfigurationError(f"storage backend {name!r} at {place}: {reason}") from error
    else:
        return found
