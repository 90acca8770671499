"""Stores of hf3fs in one folder, each with a metadata service of its own and the files of that service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from hicache.storage.base import StorageBackend
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.storage.registry import open_backend
from hicache.testing.storage.bit_flips import PAGE_BYTES, PAGES, SCOPE

METADATA = "metadata.json"

OPTIONS = {"page_bytes": PAGE_BYTES, "capacity_pages": PAGES + 4}


@contextmanager
def ended_store(folder: Path) -> Iterator[StorageBackend]:
    """A store whose service is ended at the end: the file has all changes."""
    folder.mkdir(exist_ok=True)
    with closing(Catalogue(folder / METADATA)) as catalogue, served(catalogue, folder) as backend:
        yield backend


@contextmanager
def killed_store(folder: Path) -> Iterator[StorageBackend]:
    """A store whose service is killed at the end: the journal has all changes since the service was started."""
    folder.mkdir(exist_ok=True)
    with closing(Catalogue(folder / METADATA)) as catalogue:
        with served(catalogue, folder) as backend:
            yield backend
        files = {path: path.read_bytes() for path in folder.glob(f"{METADATA}*")}
    for path, content in files.items():
        path.write_bytes(content)


@contextmanager
def served(catalogue: Catalogue, folder: Path) -> Iterator[StorageBackend]:
    """A backend on a service of its own."""
    with closing(MetadataService(catalogue)) as service:
        service.start()
        options = {"root": str(folder), "metadata_url": service.url, **OPTIONS}
        with closing(open_backend("hf3fs", SCOPE, options)) as backend:
            yield backend
