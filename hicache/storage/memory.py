"""MemoryStorage: stores pages in the memory of this process, for tests; a named store outlives its caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from hicache.storage.base import Pieces
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.registry import Options


class ScopeObjects:
    """The objects of one scope, the least recently used first."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.objects: dict[str, bytes] = {}
        self.object_bytes = 0

    def use(self, key: str) -> bytes | None:
        """The bytes of an object, which becomes the most recently used one; None if it does not exist."""
        data = self.objects.pop(key, None)
        if data is not None:
            self.objects[key] = data
        return data

    def put(self, key: str, data: bytes) -> None:
        """Store an object that does not exist yet."""
        self.objects[key] = data
        self.object_bytes += len(data)

    def remove(self, key: str) -> None:
        """Remove an object that exists."""
        self.object_bytes -= len(self.objects.pop(key))


_SHARED: dict[tuple[str, str], ScopeObjects] = {}
"""The objects of named stores, by store and scope. They outlive the instances."""


class MemoryStorage(PagedStorage):
    """Stores pages as bytes.

    Options: `store`, a name under which all instances of this process share their objects (by default each instance
    has its own); `capacity_bytes`, above which the least recently used objects are evicted (by default there is no
    limit).
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options("memory", options, ("store", "capacity_bytes"))
        store = parsed.optional_text("store")
        self._capacity_bytes = parsed.optional_count("capacity_bytes")
        # `setdefault` is atomic, so two threads that open a store get the same objects.
        self._scope = ScopeObjects() if store is None else _SHARED.setdefault((store, scope), ScopeObjects())

    def _present(self, keys: Sequence[str]) -> list[bool]:
        with self._scope.lock:
            return [key in self._scope.objects for key in keys]

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        return [self._read_one(key, pieces) for key, pieces in zip(keys, targets, strict=True)]

    def _read_one(self, key: str, pieces: Pieces) -> Answer:
        with self._scope.lock:
            data = self._scope.use(key)
            if data is None:
                return Answer.ABSENT
            if len(data) != page_bytes(pieces):
                self._scope.remove(key)
                return Answer.SHORT if len(data) < page_bytes(pieces) else Answer.LONG
        rest = memoryview(data)
        for piece in pieces:
            piece[:], rest = rest[: len(piece)], rest[len(piece) :]
        return Answer.DONE

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        batch = set(keys)
        return [self._write_one(key, pieces, batch) for key, pieces in zip(keys, sources, strict=True)]

    def _write_one(self, key: str, pieces: Pieces, batch: set[str]) -> Answer:
        with self._scope.lock:
            if self._scope.use(key) is not None:
                return Answer.PRESENT
            if not self._ensure_available(page_bytes(pieces), batch):
                return Answer.FULL
            self._scope.put(key, b"".join(pieces))
            return Answer.DONE

    def _ensure_available(self, wanted: int, batch: set[str]) -> bool:
        """Evict objects, but none of the batch, until `wanted` bytes are available. Returns whether they are."""
        if self._capacity_bytes is None:
            return True
        if wanted > self._capacity_bytes:
            return False
        while self._scope.object_bytes + wanted > self._capacity_bytes:
            oldest = next((key for key in self._scope.objects if key not in batch), None)
            if oldest is None:
                return False
            self._scope.remove(oldest)
            self.tally.removed(1)
        return True

    def _remove_all(self) -> bool:
        with self._scope.lock:
            self._scope.objects.clear()
            self._scope.object_bytes = 0
            return True

    def _holdings(self) -> tuple[int, int]:
        with self._scope.lock:
            return len(self._scope.objects), self._scope.object_bytes

    def _release(self) -> None:
        self._scope = ScopeObjects()
