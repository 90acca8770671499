"""Puts pages and takes them, one or several at a time."""

from __future__ import annotations

from hicache.storage.base import StorageBackend

from .pages import PAGE_BYTES, in_pieces


def put(backend: StorageBackend, **contents: bytes) -> list[bool]:
    """Keep pages under their names."""
    return backend.set(list(contents), [in_pieces(content) for content in contents.values()], ())


def take(backend: StorageBackend, key: str, size: int = PAGE_BYTES) -> bytes | None:
    """The bytes that a key gives, or None."""
    target = bytearray(size)
    (is_there,) = backend.get([key], [in_pieces(target)], ())
    return bytes(target) if is_there else None
