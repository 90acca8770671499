"""Copies that are said to be there before they are: what is late of one job comes with the next of its direction."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from hicache import cache
from hicache.pools.copy import ALL_LAYERS, PoolCopier
from hicache.testing.mutants.accuracy.other_parts import OtherParts
from hicache.transfer.job import CopyJob
from hicache.types import Pool, TransferKind


class _LateCopier(PoolCopier):
    kind: ClassVar[TransferKind]
    late: ClassVar[Collection[Pool]]
    _owed: CopyJob | None = None

    def queue(self, job: CopyJob) -> None:
        if job.kind is not self.kind:
            super().queue(job)
            return
        if self._owed is not None:
            self._queue_pools(self._owed, self.late)
        self._queue_pools(job, [pool for pool in self._pairs if pool not in self.late])
        self._owed = job

    def _queue_pools(self, job: CopyJob, pools: Collection[str]) -> None:
        addresses = self._addresses(job)
        for pool in self._pairs:
            if pool in pools:
                self._move(job, pool, addresses, ALL_LAYERS)


class _LateLoad(_LateCopier):
    kind, late = TransferKind.LOAD, tuple(Pool)


class _LateIndex(_LateCopier):
    kind, late = TransferKind.LOAD, (Pool.INDEXER,)


class _LateBackup(_LateCopier):
    kind, late = TransferKind.BACKUP, tuple(Pool)


class _LateSidecars(_LateCopier):
    kind, late = TransferKind.BACKUP, tuple(pool for pool in Pool if pool is not Pool.KV)


class LateLoads(OtherParts):
    """A load is done before a byte of it is there."""

    parts = ((cache, "PoolCopier", _LateLoad),)


class LateIndex(OtherParts):
    """Who reads the index does not wait for it, as who reads keys and values does."""

    parts = ((cache, "PoolCopier", _LateIndex),)


class LateBackups(OtherParts):
    """A node leaves the device for the host, which has not got its bytes."""

    parts = ((cache, "PoolCopier", _LateBackup),)


class LateSidecars(OtherParts):
    """A backup is acknowledged when its keys and values are there, whatever else belongs to it."""

    parts = ((cache, "PoolCopier", _LateSidecars),)
