"""Prefetches that bring something else than what was kept, and take it for whole."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from hicache import cache
from hicache.storage.base import StorageBackend
from hicache.testing.mutants.accuracy.other_parts import OtherParts
from hicache.tiers.storage_io import StorageWorker
from hicache.transfer.job import PageBatch, StorageJob
from hicache.types import Pool, StorageKind


class _Credulous(StorageWorker):
    believed: ClassVar[Collection[str]]

    def _move(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        whole = super()._move(backend, job, batch)
        return len(batch.keys) if job.kind is StorageKind.PREFETCH and batch.pool in self.believed else whole


class _AnyPage(_Credulous):
    believed = tuple(Pool)


class _AnyIndex(_Credulous):
    believed = (Pool.INDEXER,)


class _AnyWindow(_Credulous):
    believed = (Pool.SWA,)


class _CountsFirst(StorageWorker):
    _owed: tuple[StorageJob, PageBatch] | None = None

    def _move(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        if job.kind is StorageKind.STORE:
            return super()._move(backend, job, batch)
        if self._owed is not None:
            super()._move(backend, *self._owed)
        self._owed = job, batch
        return len(batch.keys)


class DamageUnseen(OtherParts):
    """What was read is taken, whole or not."""

    parts = ((cache, "StorageWorker", _AnyPage),)


class IndexNotAwaited(OtherParts):
    """A prefix is as long as its keys and values, whatever came of its index."""

    parts = ((cache, "StorageWorker", _AnyIndex),)


class WindowInPart(OtherParts):
    """A window is taken of which not every page came."""

    parts = ((cache, "StorageWorker", _AnyWindow),)


class CountsFirst(OtherParts):
    """Pages are counted as read before they are."""

    parts = ((cache, "StorageWorker", _CountsFirst),)
