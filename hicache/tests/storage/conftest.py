"""A folder for each test, and backends in it that are closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend

from .pages import SCOPE

Open = Callable[..., Any]


@pytest.fixture
def open_in(tmp_path: Path) -> Iterator[Open]:
    """Opens a backend on the test's own folder: `open_in("file", capacity_bytes=1)`."""
    opened: list[StorageBackend] = []

    def open_one(name: str, scope: str = SCOPE, **options: object) -> StorageBackend:
        opened.append(open_backend(name, scope, {"root": str(tmp_path), **options}))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()
