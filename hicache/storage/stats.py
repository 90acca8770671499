"""StorageStats: what a backend has done, counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StorageStats:
    """Totals of one instance; `objects` and `object_bytes` of its whole scope.

    `hits`, `misses`: pages that `get` answered True and False, those by reason (`absent`, `short`, `long`, `corrupt`,
    `error`, `mismatch`). `written`, `present`, `refused`: pages that `set` wrote, found there already, and answered
    False, by reason (`full`, `error`, `mismatch`). `removed`: objects that made room for others.
    """

    objects: int
    object_bytes: int
    hits: int
    misses: Mapping[str, int]
    written: int
    present: int
    refused: Mapping[str, int]
    removed: int
    bytes_read: int
    bytes_written: int
