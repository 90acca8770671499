"""MemoryStorage: pages in the memory of this process, for tests; under a name they outlive the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from hicache.storage.base import Pieces
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.registry import Options


class Shelf:
    """The objects of one scope, the least recently used first."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.objects: dict[str, bytes] = {}
        self.object_bytes = 0

    def use(self, key: str) -> bytes | None:
        """An object, which is the last to go from now on."""
        kept = self.objects.pop(key, None)
        if kept is not None:
            self.objects[key] = kept
        return kept

    def put(self, key: str, kept: bytes) -> None:
        """Keep an object that is not there."""
        self.objects[key] = kept
        self.object_bytes += len(kept)

    def remove(self, key: str) -> None:
        """Remove an object that is there."""
        self.object_bytes -= len(self.objects.pop(key))


_SHELVES: dict[tuple[str, str], Shelf] = {}
"""By the name of a store and a scope: what outlives the instances."""


class MemoryStorage(PagedStorage):
    """Keeps pages as bytes.

    Options: `store`, a name under which all instances of this process share what they keep (by default each has its
    own); `capacity_bytes`, above which the least recently used objects go (by default none do).
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        told = Options("memory", options, ("store", "capacity_bytes"))
        store = told.optional_text("store")
        self._capacity_bytes = told.optional_count("capacity_bytes")
        # One step of the interpreter, so that two threads that open a store find the same one.
        self._shelf = Shelf() if store is None else _SHELVES.setdefault((store, scope), Shelf())

    def _present(self, keys: Sequence[str]) -> list[bool]:
        with self._shelf.lock:
            return [key in self._shelf.objects for key in keys]

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        return [self._read_one(key, pieces) for key, pieces in zip(keys, targets, strict=True)]

    def _read_one(self, key: str, pieces: Pieces) -> Answer:
        with self._shelf.lock:
            kept = self._shelf.use(key)
            if kept is None:
                return Answer.ABSENT
            if len(kept) != page_bytes(pieces):
                self._shelf.remove(key)
                return Answer.SHORT if len(kept) < page_bytes(pieces) else Answer.LONG
        rest = memoryview(kept)
        for piece in pieces:
            piece[:], rest = rest[: len(piece)], rest[len(piece) :]
        return Answer.DONE

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        held = set(keys)
        return [self._write_one(key, pieces, held) for key, pieces in zip(keys, sources, strict=True)]

    def _write_one(self, key: str, pieces: Pieces, held: set[str]) -> Answer:
        with self._shelf.lock:
            if self._shelf.use(key) is not None:
                return Answer.PRESENT
            if not self._make_room(page_bytes(pieces), held):
                return Answer.FULL
            self._shelf.put(key, b"".join(pieces))
            return Answer.DONE

    def _make_room(self, wanted: int, held: set[str]) -> bool:
        """Whether there is room now, without a page of the same batch, which was answered or will be."""
        if self._capacity_bytes is None:
            return True
        if wanted > self._capacity_bytes:
            return False
        while self._shelf.object_bytes + wanted > self._capacity_bytes:
            oldest = next((key for key in self._shelf.objects if key not in held), None)
            if oldest is None:
                return False
            self._shelf.remove(oldest)
            self.tally.removed(1)
        return True

    def _remove_all(self) -> bool:
        with self._shelf.lock:
            self._shelf.objects.clear()
            self._shelf.object_bytes = 0
            return True

    def _holdings(self) -> tuple[int, int]:
        with self._shelf.lock:
            return len(self._shelf.objects), self._shelf.object_bytes

    def _release(self) -> None:
        self._shelf = Shelf()
