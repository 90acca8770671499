"""Place: where a backend keeps its objects for one test, and the instances that were opened there."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend
from hicache.testing.storage.subject import CAPACITY_BYTES, DIRECTORY, PAGE_BYTES, UNIQUE, BackendSubject

PAGE = 4096
AMPLE = 256 << 20

_numbers = itertools.count()


class Place:
    """A fresh place. `directory`: the folder of the backend, which is made inside `folder`.

    `page_bytes`, `capacity_bytes`: what a backend is told that has options for them. The scopes have names of their
    own, so that a backend that is told no place is fresh as well.
    """

    def __init__(
        self, subject: BackendSubject, folder: Path, *, page_bytes: int = PAGE, capacity_bytes: int = AMPLE
    ) -> None:
        self.name = f"place-{os.getpid()}-{next(_numbers)}"
        self.subject = subject
        self.page_bytes = page_bytes
        self.directory = folder / self.name
        self.directory.mkdir()
        values = {
            DIRECTORY: str(self.directory),
            UNIQUE: self.name,
            PAGE_BYTES: page_bytes,
            CAPACITY_BYTES: capacity_bytes,
        }
        self.options: dict[str, Any] = subject.options_for(values)
        self._opened: list[StorageBackend] = []

    def scope(self, name: str) -> str:
        """The scope of this place that a test calls so."""
        return f"{self.name}-{name}"

    def open(self, scope: str) -> StorageBackend:
        """One more instance. It is closed with the place, if not before."""
        backend = open_backend(self.subject.name, scope, self.options)
        self._opened.append(backend)
        return backend

    def close(self) -> None:
        """Close every instance."""
        while self._opened:
            self._opened.pop().close()
