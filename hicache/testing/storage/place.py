"""Place: where a backend keeps its objects for one test, and the instances that were opened there."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from hicache.storage.base import StorageBackend
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.storage.registry import open_backend
from hicache.storage.wrappers import FaultyStorage
from hicache.testing.storage.subject import (
    CAPACITY_BYTES,
    CAPACITY_PAGES,
    DIRECTORY,
    METADATA_URL,
    PAGE_BYTES,
    UNIQUE,
    BackendSubject,
)

PAGE = 4096
AMPLE = 256 << 20

_MAX_PAGES = 1 << 16

_numbers = itertools.count()


class Place:
    """A new, empty place. `directory`: the folder of the backend, created inside `folder`.

    `page_bytes`, `capacity_bytes`: the values of options that ask for them. The scopes have unique names, so that also
    a backend without a folder starts empty. `faults`: options of the wrapper that makes instances fail that are opened
    from now on; without options there is no wrapper. `metadata`: the metadata service that the backend uses.
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
        """Close every instance and the metadata service."""
        while self._opened:
            self._opened.pop().close()
        if self.metadata is not None:
            self.metadata.close()


def _metadata_service() -> MetadataService:
    service = MetadataService(Catalogue(None))
    service.start()
    return service
