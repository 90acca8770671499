"""DictionaryStorage: a correct storage backend over a dictionary; the base class of defective ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any

from hicache.storage.base import Pieces, StorageBackend, StorageStats
from hicache.storage.keys import check_key, check_scope

STORES: dict[tuple[str, str], dict[str, bytes]] = {}
"""The objects, by the name of a store and a scope."""


class DictionaryStorage(StorageBackend):
    """Options: `store`, a name that instances share; `capacity_bytes` of one scope."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        self.scope = self.checked_scope(scope)
        self.store = options["store"]
        self.capacity_bytes = options["capacity_bytes"]
        self.lock = RLock()
        self.counts: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    @property
    def objects(self) -> dict[str, bytes]:
        """The objects of the scope, oldest first."""
        return STORES.setdefault((self.store, self.scope), {})

    def checked_scope(self, scope: str) -> str:
        """The name of a scope in the store."""
        return check_scope(scope)

    def checked_key(self, key: str) -> str:
        """The name of an object in the store."""
        return check_key(key)

    def has(self, keys: Sequence[str]) -> list[bool]:
        return [self.checked_key(key) in self.objects for key in keys]

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        names = [self.checked_key(key) for key in keys]
        if len(keys) != len(targets):
            return [False] * len(keys)
        return [self.read(name, pieces) for name, pieces in zip(names, targets, strict=True)]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        names = [self.checked_key(key) for key in keys]
        if len(keys) != len(sources):
            return [False] * len(keys)
        return [self.write(name, pieces) for name, pieces in zip(names, sources, strict=True)]

    def read(self, name: str, pieces: Pieces) -> bool:
        """Copy an object to its target."""
        kept = self.objects.get(name)
        if kept is None or len(kept) != sum(map(len, pieces)):
            self.missed("absent" if kept is None else "short")
            return False
        rest = memoryview(kept)
        for piece in pieces:
            piece[:], rest = rest[: len(piece)], rest[len(piece) :]
        self.counts.update(hits=1, bytes_read=len(kept))
        return True

    def write(self, name: str, pieces: Pieces) -> bool:
        """Store an object, and evict others for it if needed."""
        with self.lock:
            objects = self.objects
            if name in objects:
                self.counts["present"] += 1
                return True
            size = sum(map(len, pieces))
            if size > self.capacity_bytes:
                return False
            while sum(map(len, objects.values())) + size > self.capacity_bytes:
                objects.pop(next(iter(objects)))
                self.counts["removed"] += 1
            objects[name] = b"".join(pieces)
            self.counts.update(written=1, bytes_written=size)
            return True

    def missed(self, reason: str) -> None:
        """Count a miss."""
        self.misses[reason] += 1

    def clear(self) -> bool:
        self.objects.clear()
        return True

    def stats(self) -> StorageStats:
        names = ("hits", "written", "present", "removed", "bytes_read", "bytes_written")
        counts = {name: self.counts[name] for name in names}
        kept = sum(map(len, self.objects.values()))
        return StorageStats(
            objects=len(self.objects), object_bytes=kept, misses=dict(self.misses), refused={}, **counts
        )

    def close(self) -> None:
        """Do nothing, as nothing is open."""
