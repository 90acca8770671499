"""Prefetches that bring something else than what was kept, and take it for whole."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from hicache.storage.base import StorageBackend
from hicache.testing.mutants.accuracy.other_parts import OtherParts
from hicache.tiers import storage_tier
from hicache.tiers.storage_io import StorageWorker
from hicache.transfer.job import PageBatch, StorageJob
from hicache.types import Pool, StorageKind


class _Credulous(StorageWorker):
    believed: ClassVar[Collection[Pool]]

    def _transfer(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        whole = super()._transfer(backend, job, batch)
        return len(batch.keys) if job.kind is StorageKind.PREFETCH and batch.pool in self.believed else whole


class _AnyPage(_Credulous):
    believed = tuple(Pool)


class _AnyIndex(_Credulous):
    believed = (Pool.INDEXER,)


class _AnyWindow(_Credulous):
    believed = (Pool.SWA,)


class _CountsFirst(StorageWorker):
    _owed: tuple[StorageJob, PageBatch] | None = None

    def _transfer(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        if job.kind is StorageKind.STORE:
            return super()._transfer(backend, job, batch)
        if self._owed is not None:
            super()._transfer(backend, *self._owed)
        self._owed = job, batch
        return len(batch.keys)


class DamageUnseen(OtherParts):
    """What was read is taken, whole or not."""

    parts = ((storage_tier, "StorageWorker", _AnyPage),)


class IndexNotAwaited(OtherParts):
    """A prefix is as long as its keys and values, whatever came of its index."""

    parts = ((storage_tier, "StorageWorker", _AnyIndex),)


class WindowInPart(OtherParts):
    """A window is taken of which not every page came."""

    parts = ((storage_tier, "StorageWorker", _AnyWindow),)


class CountsFirst(OtherParts):
    """Pages are counted as read before they are."""

    parts = ((storage_tier, "StorageWorker", _CountsFirst),)
