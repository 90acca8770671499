"""BackendSubject: a backend under test, with those that ship; Place: where one keeps its objects during a test."""

from __future__ import annotations

import itertools
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hicache.config import read_table
from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.storage.registry import backend_class, conceal_options, open_backend, refuse_inline_secrets
from hicache.storage.wrappers import FaultyStorage
from hicache.testing.contract import CONTRACT, Clause

PAGE = 4096
AMPLE = 256 << 20

_MAX_PAGES = 1 << 16

_numbers = itertools.count()

_log = logging.getLogger(__name__)

DIRECTORY = "{directory}"
"""A placeholder in an option for a new folder."""

UNIQUE = "{unique}"
"""A placeholder in an option for a unique name."""

CAPACITY_BYTES = "{capacity_bytes}"
"""A placeholder for an option: the capacity in bytes, an integer."""

CAPACITY_PAGES = "{capacity_pages}"
"""A placeholder for an option: the capacity in pages, an integer."""

PAGE_BYTES = "{page_bytes}"
"""A placeholder for an option: the size of the largest page, an integer."""

METADATA_URL = "{metadata_url}"
"""A placeholder for an option: the address of a new metadata service of this project."""

PLACEHOLDERS = (DIRECTORY, UNIQUE, CAPACITY_BYTES, CAPACITY_PAGES, PAGE_BYTES, METADATA_URL)

_PLACEHOLDER = re.compile(r"\{(\{\w+\})\}|\{\w+\}")
"""A placeholder, or a word in double braces, which stands for the word in braces."""


@dataclass(frozen=True, slots=True)
class BackendSubject:
    """A backend, given by its name (registered, an entry point or `module:Class`), and its options.

    The options are not shown: one of them may be secret.
    """

    name: str
    options: Mapping[str, Any] = field(repr=False)

    @property
    def is_on_disk(self) -> bool:
        """Whether an option is a folder, so that the files can be read and damaged."""
        return _mentions(self.options, DIRECTORY)

    @property
    def is_bounded(self) -> bool:
        """Whether an option is a capacity."""
        return self.counts_bytes or _mentions(self.options, CAPACITY_PAGES)

    @property
    def counts_bytes(self) -> bool:
        """Whether an option is a capacity in bytes, for pages of any size."""
        return _mentions(self.options, CAPACITY_BYTES)

    @property
    def asks_metadata(self) -> bool:
        """Whether an option is the address of a metadata service."""
        return _mentions(self.options, METADATA_URL)

    def options_for(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The options with each placeholder replaced: by the value as a whole option, by its text inside one."""
        return {name: _filled(option, values) for name, option in self.options.items()}


def _mentions(option: object, placeholder: str) -> bool:
    return any(placeholder in _placeholders(text) for text in _texts(option))


def _placeholders(text: str) -> list[str]:
    return [found[0] for found in _PLACEHOLDER.finditer(text) if found[1] is None]


def _texts(option: object) -> Iterator[str]:
    """Each string in an option, which may be a table or a list."""
    if isinstance(option, str):
        yield option
    elif isinstance(option, (Mapping, list)):
        for one in option.values() if isinstance(option, Mapping) else option:
            yield from _texts(one)


def _require_known_placeholders(name: str, options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for a placeholder that is not known: the backend would take it for a value."""
    for found in (found for text in _texts(options) for found in _placeholders(text)):
        if found not in PLACEHOLDERS:
            close = "".join(f"; did you mean {one}?" for one in get_close_matches(found, PLACEHOLDERS, n=1))
            known = ", ".join(PLACEHOLDERS)
            raise ConfigurationError(
                f"storage backend {name!r}: unknown placeholder {found}; known: {known}{close}; {{{found}}} is the text"
            )


def _filled(option: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(option, str):
        return values[option] if option in values else _text(option, values)
    if isinstance(option, Mapping):
        return {name: _filled(one, values) for name, one in option.items()}
    return [_filled(one, values) for one in option] if isinstance(option, list) else option


def _text(option: str, values: Mapping[str, Any]) -> str:
    return _PLACEHOLDER.sub(lambda found: found[1] or str(values.get(found[0], found[0])), option)


SHIPPED = (
    BackendSubject("memory", {"store": UNIQUE, "capacity_bytes": CAPACITY_BYTES}),
    BackendSubject("file", {"root": DIRECTORY, "capacity_bytes": CAPACITY_BYTES}),
    BackendSubject("slotfile", {"root": DIRECTORY, "capacity_slots": CAPACITY_PAGES}),
    BackendSubject(
        "hf3fs",
        {
            "root": DIRECTORY,
            "page_bytes": PAGE_BYTES,
            "capacity_pages": CAPACITY_PAGES,
            "metadata_url": METADATA_URL,
        },
    ),
)


def read_subject(name: str, config: str | None) -> BackendSubject:
    """The backend of this name, with the options of a JSON string or an `@file`.

    A backend that ships has default options. Raises ConfigurationError for what cannot be found or read.
    """
    backend_class(name)
    known = next((subject for subject in SHIPPED if subject.name == name), None)
    if config is None and known is not None:
        return known
    if config is None:
        return BackendSubject(name, {})
    options = read_table(config)
    refuse_inline_secrets(name, options, config)
    _require_known_placeholders(name, options)
    return BackendSubject(name, conceal_options(name, options))


def require_opened(subject: BackendSubject) -> None:
    """Open the backend once. Raises ConfigurationError if it refuses its options, or lacks a library.

    What else it raises is a finding, which a test makes.
    """
    try:
        with TemporaryDirectory(prefix="hicache-") as folder, closing(Place(subject, Path(folder))) as place:
            place.open(place.scope("opened"))
    except ConfigurationError:
        raise
    except Exception:  # noqa: BLE001 - the backend is under test
        _log.debug("the backend %r raised when it was opened", subject.name, exc_info=True)


BACKEND_CLAUSES: Mapping[str, Clause] = {
    clause_id: CONTRACT[clause_id]
    for clause_id in (
        "KEY-2",
        *(f"STORE-{number}" for number in range(1, 17)),
        "FLOW-13",
        *("SEC-4", "SEC-5", "SEC-6", "SEC-7"),
    )
}
"""In the order of the contract. Those of metadata are executed for a backend with the project's metadata service."""


class Place:
    """A new, empty place. `directory`: the folder of the backend, created inside `folder`.

    `page_bytes`, `capacity_bytes`: the values of options that ask for them. The scopes have unique names, so that also
    a backend without a folder starts empty. `faults`: options of the wrapper that makes instances fail that are opened
    from now on; without options there is no wrapper. `metadata`: the metadata service that the backend uses.
    `given`: the bytes of each object that a test has stored, by scope and key.
    """

    def __init__(
        self, subject: BackendSubject, folder: Path, *, page_bytes: int = PAGE, capacity_bytes: int = AMPLE
    ) -> None:
        self.name = f"place-{os.getpid()}-{next(_numbers)}"
        self.subject = subject
        self.page_bytes = page_bytes
        self.directory = folder / self.name
        self.directory.mkdir()
        self.metadata = _metadata_service() if subject.asks_metadata else None
        values = {
            DIRECTORY: str(self.directory),
            UNIQUE: self.name,
            PAGE_BYTES: page_bytes,
            CAPACITY_BYTES: capacity_bytes,
            CAPACITY_PAGES: min(capacity_bytes // page_bytes, _MAX_PAGES),
            METADATA_URL: self.metadata.url if self.metadata else None,
        }
        self.options: dict[str, Any] = subject.options_for(values)
        self.faults: dict[str, Any] = {}
        self.given: dict[tuple[str, str], int] = {}
        self._opened: list[StorageBackend] = []

    def scope(self, name: str) -> str:
        """The full name of a scope of this place."""
        return f"{self.name}-{name}"

    def open(self, scope: str) -> StorageBackend:
        """Open one more instance. It is closed with the place, if not before."""
        name, options = self.subject.name, self.options
        if self.faults:
            name, options = "faulty", {"inner": name, "inner_options": options, **self.faults}
        backend = open_backend(name, scope, options)
        self._opened.append(backend)
        return backend

    @property
    def injected(self) -> int:
        """How often the wrapper has made open instances fail."""
        return sum(sum(one.injected.values()) for one in self._opened if isinstance(one, FaultyStorage))

    def close(self) -> None:
        """Close every instance and the metadata service, and remove the folder: a suite's stores take gigabytes."""
        try:
            while self._opened:
                self._opened.pop().close()
            if self.metadata is not None:
                self.metadata.close()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def _metadata_service() -> MetadataService:
    service = MetadataService(Catalogue(None))
    service.start()
    return service
