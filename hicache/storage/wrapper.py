"""StorageWrapper: a backend around another, which does everything until a verb is overridden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hicache.storage.base import Pieces, PoolQuery, StorageBackend
from hicache.storage.options import Options
from hicache.storage.registry import open_backend
from hicache.storage.stats import StorageStats


class StorageWrapper(StorageBackend):
    """Options: `inner`, a backend or the name of one; `inner_options`, what that one is told; and those of `OWN`."""

    NAME = "wrapper"
    OWN: tuple[str, ...] = ()

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        self.told = Options(self.NAME, options, ("inner", "inner_options", *self.OWN))
        inner = options.get("inner")
        if not isinstance(inner, StorageBackend):
            inner = open_backend(self.told.text("inner"), scope, self.told.table("inner_options"))
        self.inner = inner

    def has(self, keys: Sequence[str]) -> list[bool]:
        return self.inner.has(keys)

    def get(self, keys: Sequence[str], targets: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self.inner.get(keys, targets, prefix_keys)

    def set(self, keys: Sequence[str], sources: Sequence[Pieces], prefix_keys: Sequence[str]) -> list[bool]:
        return self.inner.set(keys, sources, prefix_keys)

    def clear(self) -> bool:
        return self.inner.clear()

    def stats(self) -> StorageStats:
        return self.inner.stats()

    def close(self) -> None:
        self.inner.close()

    def register(self, regions: Sequence[memoryview]) -> None:
        self.inner.register(regions)

    def exists(self, keys: Sequence[str], queries: Sequence[PoolQuery], prefix_keys: Sequence[str]) -> int:
        return self.inner.exists(keys, queries, prefix_keys)
