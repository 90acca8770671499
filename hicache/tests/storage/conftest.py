"""Pages to keep and to take, backends in a folder of each test, and services, closed at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import Any, TypeAlias

import numpy as np
import pytest

from hicache.storage.base import Pieces, StorageBackend
from hicache.storage.hf3fs.catalogue import Catalogue
from hicache.storage.hf3fs.service import MetadataService
from hicache.storage.registry import open_backend

Open = Callable[..., Any]
Serve: TypeAlias = Callable[..., MetadataService]

PAGE_BYTES = 10_000
CUTS = (0, 4_096, 4_097, 9_000, PAGE_BYTES)
SCOPE = "tiny-1"


def page(seed: int, size: int = PAGE_BYTES) -> bytes:
    """Bytes that no other seed gives."""
    return np.random.default_rng(seed).bytes(size)


def in_pieces(content: bytes | bytearray) -> Pieces:
    """The memory of a page, cut at odd places."""
    whole = memoryview(content)
    cuts = [cut for cut in CUTS if cut < len(content)] + [len(content)]
    return [whole[begin:end] for begin, end in pairwise(cuts)]


def keys_of(count: int) -> list[str]:
    """Names such as a cache gives."""
    return [f"kv.tp0of1/{number:064x}" for number in range(count)]


def put(backend: StorageBackend, **contents: bytes) -> list[bool]:
    """Keep pages under their names."""
    return backend.set(list(contents), [in_pieces(content) for content in contents.values()], ())


def take(backend: StorageBackend, key: str, size: int = PAGE_BYTES) -> bytes | None:
    """The bytes that a key gives, or None."""
    target = bytearray(size)
    (is_there,) = backend.get([key], [in_pieces(target)], ())
    return bytes(target) if is_there else None


def descriptors_of_this_process() -> set[str]:
    """The numbers of the files that are open."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@contextmanager
def full_disk(file_bytes: int) -> Iterator[None]:
    """A disk on which no file of this process gets longer than this: the system refuses what is written after it."""
    limits = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (file_bytes, limits[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, limits)


@pytest.fixture
def open_in(tmp_path: Path) -> Iterator[Open]:
    """Opens a backend on the test's own folder: `open_in("file", capacity_bytes=1)`."""
    opened: list[StorageBackend] = []

    def open_one(name: str, scope: str = SCOPE, **options: object) -> StorageBackend:
        # Memory is one store for a test, as a folder is.
        place = {"store": str(tmp_path)} if name == "memory" else {"root": str(tmp_path)}
        opened.append(open_backend(name, scope, {**place, **options}))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves a catalogue: `serve(catalogue, port=18000)`."""
    services: list[MetadataService] = []

    def serve_one(catalogue: Catalogue, port: int = 0) -> MetadataService:
        services.append(MetadataService(catalogue, port=port))
        services[-1].start()
        return services[-1]

    yield serve_one
    for service in services:
        service.close()


@pytest.fixture
def service(serve: Serve) -> MetadataService:
    """A service that keeps nothing."""
    return serve(Catalogue(None))
