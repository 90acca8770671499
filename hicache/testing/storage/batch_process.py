"""The process behind `crash_states`: opens a store, stores one batch of pages, and says what was acknowledged.

Its arguments are a function that opens the store, as `module:name` with JSON options, and the folder.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from hicache.storage.base import StorageBackend
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.storage.registry import open_backend
from hicache.testing.storage.page_bytes import Sheet, page_bytes
from hicache.testing.storage.subject import METADATA_URL

SCOPE = "crash-1"

PAGE_BYTES = 600
"""The size of a page: with its header more than a block of a disk, so that a page can be torn."""

EARLIER = [f"earlier/{number}" for number in range(5)]
"""Pages that were stored by a process that has ended before the batch begins."""

BATCH = [f"batch/{number}" for number in range(20)]

ACKNOWLEDGED = b"the batch is stored\n"
"""What the process writes to its output after the batch."""


def bytes_of(key: str) -> bytes:
    """The bytes of a page."""
    return page_bytes(SCOPE, key, 0, PAGE_BYTES)


def store(backend: StorageBackend, keys: Sequence[str]) -> list[bool]:
    """Store pages in one call."""
    sheet = Sheet([[PAGE_BYTES]] * len(keys))
    for number, key in enumerate(keys):
        sheet.write(number, bytes_of(key))
    return backend.set(keys, sheet.pages, [])


def read(backend: StorageBackend, keys: Sequence[str]) -> list[bytes | None]:
    """The bytes of each page, None for one that is absent."""
    sheet = Sheet([[PAGE_BYTES]] * len(keys))
    answers = backend.get(keys, sheet.pages, [])
    return [sheet.read(number) if answer else None for number, answer in enumerate(answers)]


@contextmanager
def opened(name: str, options: Mapping[str, Any], folder: Path) -> Iterator[StorageBackend]:
    """A backend whose files are below a folder, with a metadata service whose file is there too if it needs one."""
    given = {"root": str(folder / "pages"), **options}
    (folder / "pages").mkdir(parents=True, exist_ok=True)
    if METADATA_URL not in given.values():
        with closing(open_backend(name, SCOPE, given)) as backend:
            yield backend
        return
    with closing(Catalogue(folder / "metadata")) as catalogue, closing(MetadataService(catalogue)) as service:
        service.start()
        given = {key: service.url if value == METADATA_URL else value for key, value in given.items()}
        with closing(open_backend(name, SCOPE, given)) as backend:
            yield backend


def main(name: str, options: str, folder: str) -> None:
    """Store the batch."""
    with opened(name, json.loads(options), Path(folder)) as backend:
        if store(backend, BATCH) != [True] * len(BATCH):
            raise SystemExit(f"expected {name} to store {len(BATCH)} pages")
        os.write(1, ACKNOWLEDGED)


if __name__ == "__main__":
    main(*sys.argv[1:])
