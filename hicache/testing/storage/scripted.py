"""ScriptedStorage: a backend in memory whose objects outlive it, and which fails when a test says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces, PoolQuery, StorageBackend, StorageStats
from hicache.storage.keys import check_key, check_scope
from hicache.testing.storage.store import Call, Store

BACKEND = f"{__name__}:ScriptedStorage"
"""The name of the backend in a configuration."""

NOISE = 0x5A
"""The byte that fills the target of a failed read."""

_STORES: dict[str, Store] = {}


def store_named(name: str) -> Store:
    """The store of this name, which exists until the process ends."""
    return _STORES.setdefault(name, Store())


def store_of(config: CacheConfig) -> Store | None:
    """The store of a cache's storage, or None without storage or with another backend."""
    if config.storage is None or config.storage.backend != BACKEND:
        return None
    return store_named(config.storage.extra.options["store"])


class ScriptedStorage(StorageBackend):
    """Stores pages in the store that the option `store` names, and records the memory they are copied from and to."""

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        for option, value in options.items():
            if option != "store":
                raise ConfigurationError(f"ScriptedStorage has no option {option!r} (value {value!r}), only 'store'")
        name = options.get("store")
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"ScriptedStorage: option 'store' must be a name, got {name!r}")
        self._scope = check_scope(scope)
        self._store = store_named(name)
        self._counts: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._regions: list[tuple[int, int]] = []

    def has(self, keys: Sequence[str]) -> list[bool]:
        self._note("has", keys, ())
        return [self._store.has(key) for key in self._full(keys)]

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        self._note("get", keys, prefix_keys)
        if len(keys) != len(targets):
            self._misses["mismatch"] += len(keys)
            return [False] * len(keys)
        return [self._read(key, target) for key, target in zip(self._full(keys), targets, strict=True)]

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        self._note("set", keys, prefix_keys)
        if len(keys) != len(sources):
            self._refused["mismatch"] += len(keys)
            return [False] * len(keys)
        return [self._write(key, source) for key, source in zip(self._full(keys), sources, strict=True)]

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        self._note("exists", keys, prefix_keys)
        return super().exists(keys, queries, prefix_keys)

    def clear(self) -> bool:
        self._note("clear", (), ())
        self._store.remove(self._scope)
        return True

    def stats(self) -> StorageStats:
        own = [content for key, content in dict(self._store.objects).items() if key.startswith(f"{self._scope}/")]
        return StorageStats(
            objects=len(own),
            object_bytes=sum(map(len, own)),
            hits=self._counts["hits"],
            misses=dict(self._misses),
            written=self._counts["written"],
            present=self._counts["present"],
            refused=dict(self._refused),
            removed=0,
            bytes_read=self._counts["bytes_read"],
            bytes_written=self._counts["bytes_written"],
        )

    def close(self) -> None:
        self._note("close", (), ())

    def register(self, regions: Sequence[memoryview]) -> None:
        self._regions = [_extent(region) for region in regions]

    def _read(self, key: str, target: Pieces) -> bool:
        self._watch(target)
        wanted = sum(len(piece) for piece in target)
        content, reason = self._store.get(key, wanted)
        _scatter(bytes([NOISE]) * wanted if reason else content, target)
        if reason:
            self._misses[reason] += 1
        else:
            self._counts.update(hits=1, bytes_read=wanted)
        return not reason

    def _write(self, key: str, source: Pieces) -> bool:
        self._watch(source)
        content = b"".join(source)
        outcome = self._store.set(key, content)
        if outcome == "refused":
            self._refused["error"] += 1
            return False
        self._counts.update({outcome: 1, "bytes_written": len(content) if outcome == "written" else 0})
        return True

    def _watch(self, pieces: Pieces) -> None:
        extents = [_extent(piece) for piece in pieces]
        strays = sum(not any(low <= first and last <= high for low, high in self._regions) for first, last in extents)
        self._store.moved(len(extents), strays)

    def _full(self, keys: Iterable[str]) -> list[str]:
        return [f"{self._scope}/{check_key(key)}" for key in keys]

    def _note(self, verb: str, keys: Iterable[str], prefix_keys: Iterable[str]) -> None:
        self._store.note(Call(verb, tuple(self._full(keys)), tuple(prefix_keys)))


def _extent(memory: memoryview) -> tuple[int, int]:
    """The first address of the memory, and the address after its last byte."""
    first = int(np.frombuffer(memory, dtype=np.uint8).ctypes.data) if len(memory) else 0
    return first, first + len(memory)


def _scatter(content: bytes, target: Pieces) -> None:
    start = 0
    for piece in target:
        piece[:] = content[start : start + len(piece)]
        start += len(piece)
