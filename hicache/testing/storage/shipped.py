"""The backends that ship, as subjects of the suite; and the subject of a run."""

from __future__ import annotations

from hicache.config import read_table
from hicache.storage.registry import backend_class
from hicache.testing.storage.subject import (
    CAPACITY_BYTES,
    CAPACITY_PAGES,
    DIRECTORY,
    METADATA_URL,
    PAGE_BYTES,
    UNIQUE,
    BackendSubject,
)

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
    return BackendSubject(name, {} if config is None else read_table(config))
