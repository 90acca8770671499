"""ScriptedStorage: a backend in memory whose Store outlives it, and which fails when a test says so."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.storage.base import Pieces, PoolQuery, StorageBackend, StorageStats
from hicache.storage.keys import check_keys, check_scope

BACKEND = f"{__name__}:ScriptedStorage"
"""The name of the backend in a configuration."""

NOISE = 0x5A
"""The byte that fills the target of a failed read."""


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One call of a backend: the verb, the full keys, and the keys of the preceding pages."""

    verb: str
    keys: tuple[str, ...]
    prefix_keys: tuple[str, ...]


@dataclass(slots=True)
class Faults:
    """The faults from now on.

    `refused`: full keys that `set` refuses. `failing_gets`, `failing_sets`: how many of the next pages fail.
    `raising`: verbs that raise, which a backend must not do.
    """

    refused: set[str] = field(default_factory=set)
    failing_gets: int = 0
    failing_sets: int = 0
    raising: set[str] = field(default_factory=set)


class Store:
    """Objects by full key: scope, slash, key. Thread-safe.

    `objects`: the present objects. `written`: every key that ever had a whole object. `offered`: every key that was
    passed to `set`. `has_refused`: whether a `set` was refused. `calls`: all calls so far, oldest first.
    `moved_pieces`: pieces of memory that pages were read from or written to; `stray_pieces`: those outside of the
    registered memory.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.empty()

    def empty(self) -> None:
        """Remove all objects, records and faults."""
        with self._lock:
            self.objects: dict[str, bytes] = {}
            self.written: set[str] = set()
            self.offered: set[str] = set()
            self.has_refused = False
            self.moved_pieces = self.stray_pieces = 0
            self.calls: list[StoreCall] = []
            self.faults = Faults()
            self._corrupted: dict[str, str] = {}

    def corrupt(self, keys: Iterable[str], reason: str = "absent") -> None:
        """Lose or damage objects that are present, which a read detects but `has` does not."""
        with self._lock:
            self._corrupted.update((key, reason) for key in keys if key in self.objects)

    def restore(self, contents: Mapping[str, bytes]) -> None:
        """Restore objects to their contents, and undo all losses and damage."""
        with self._lock:
            self.objects.update(contents)
            self.written.update(contents)
            self._corrupted.clear()

    def readable(self, keys: Iterable[str]) -> list[bool]:
        """Which objects can be read whole, key by key. `has` does not show this."""
        with self._lock:
            return [key in self.objects and key not in self._corrupted for key in keys]

    def was_written(self, key: str) -> bool:
        """Whether a key ever had a whole object."""
        with self._lock:
            return key in self.written

    def has(self, key: str) -> bool:
        """Whether an object seems to be present."""
        with self._lock:
            return key in self.objects

    def get(self, key: str, size: int) -> tuple[bytes, str]:
        """An object of `size` bytes, or the reason why it cannot be read; then it is removed."""
        with self._lock:
            reason = self._reason(key, size)
            content = self.objects.pop(key, b"") if reason else self.objects[key]
            self._corrupted.pop(key, None)
            return content, reason

    def set(self, key: str, content: bytes) -> str:
        """Store an object if the key has none: `written`, `present` or `refused`."""
        with self._lock:
            self.offered.add(key)
            if key in self.objects:
                return "present"
            is_failing = self.faults.failing_sets > 0
            self.faults.failing_sets -= is_failing
            if is_failing or key in self.faults.refused:
                self.has_refused = True
                return "refused"
            self.objects[key] = content
            self.written.add(key)
            return "written"

    def moved(self, pieces: int, strays: int) -> None:
        """Count the pieces of memory of a copied page."""
        with self._lock:
            self.moved_pieces += pieces
            self.stray_pieces += strays

    def remove(self, scope: str) -> None:
        """Remove the objects of a scope."""
        with self._lock:
            for key in [key for key in self.objects if key.startswith(f"{scope}/")]:
                del self.objects[key]
                self._corrupted.pop(key, None)

    def note(self, call: StoreCall) -> None:
        """Record a call. Raises RuntimeError when the test has set the verb to raise."""
        with self._lock:
            self.calls.append(call)
            if call.verb in self.faults.raising:
                self.has_refused |= call.verb == "set"
                raise RuntimeError(f"{call.verb} of {len(call.keys)} keys raises, as the test has set")

    def _reason(self, key: str, size: int) -> str:
        """The reason why an object cannot be read, or empty."""
        if self.faults.failing_gets:
            self.faults.failing_gets -= 1
            return "error"
        if key not in self.objects:
            return "absent"
        found = len(self.objects[key])
        return self._corrupted.get(key, "" if found == size else "short" if found < size else "long")


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

    def register(self, regions: Sequence[memoryview]) -> bool:
        self._regions = [_extent(region) for region in regions]
        return True

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

    def _full(self, keys: Sequence[str]) -> list[str]:
        check_keys(keys)
        return [f"{self._scope}/{key}" for key in keys]

    def _note(self, verb: str, keys: Sequence[str], prefix_keys: Iterable[str]) -> None:
        self._store.note(StoreCall(verb, tuple(self._full(keys)), tuple(prefix_keys)))


def _extent(memory: memoryview) -> tuple[int, int]:
    """The first address of the memory, and the address after its last byte."""
    first = int(np.frombuffer(memory, dtype=np.uint8).ctypes.data) if len(memory) else 0
    return first, first + len(memory)


def _scatter(content: bytes, target: Pieces) -> None:
    start = 0
    for piece in target:
        piece[:] = content[start : start + len(piece)]
        start += len(piece)
