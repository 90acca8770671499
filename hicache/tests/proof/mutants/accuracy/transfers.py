"""Transfers that move other bytes than meant, or that count as done before they are or after they failed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import ModuleType
from typing import ClassVar
from unittest.mock import patch

import numpy as np

from hicache import cache
from hicache.components.base import TreeComponent
from hicache.config import CacheConfig
from hicache.parallel.group import Group
from hicache.pools.buffers import ALL_LAYERS
from hicache.pools.copy import Addresses, PoolCopier
from hicache.storage.base import StorageBackend
from hicache.testing.adapter import PageBytes
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.tiers.backup import BackupManager
from hicache.tiers.controller import HybridCacheController
from hicache.tiers.storage_io import StorageWorker
from hicache.tiers.transfer import Transfer
from hicache.transfer.executors import Executor, StepExecutor, ThreadExecutor
from hicache.transfer.job import Copier, CopyJob, CopyWorker, LayeredCopier, Move, PageBatch, Progress, StorageJob
from hicache.tree.node import Node
from hicache.types import Component, Pool, Slots, TransferKind, TransferPhase

MAX_PAGES = 4096


class OtherParts(ReferenceAdapter):
    """The reference cache with another class in the place of some parts.

    `parts`: a module, a name in it, and what stands there while the cache is opened.
    """

    parts: ClassVar[tuple[tuple[ModuleType, str, object], ...]]

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        with ExitStack() as replaced:
            for part in self.parts:
                replaced.enter_context(patch.object(*part))
            super().__init__(config, groups)


class _ByBlock(PoolCopier):
    def _addresses_of(self, job: CopyJob, component: str) -> Addresses:
        if job.kind is TransferKind.BACKUP:
            return super()._addresses_of(job, component)
        blocks = [page for part in job.parts if component in part for page in part[component].host.tolist()]
        return self._method.addresses(blocks, blocks)


class _OnePageSize(PoolCopier):
    def _addresses_of(self, job: CopyJob, component: str) -> Addresses:
        if component != Component.MAMBA:
            return super()._addresses_of(job, component)
        moves = [part[component] for part in job.parts if component in part]
        device = [page for move in moves for page in move.device.tolist()]
        host = [page // self._tiers[1].page_size for move in moves for page in move.host.tolist()]
        return self._method.addresses(device, host)


class _TargetLayers(PoolCopier):
    def _move(self, job: CopyJob, pool: str, addresses: Mapping[str, Addresses], layers: slice) -> None:
        if job.kind is TransferKind.LOAD:
            layers = slice(0, self._tiers[0].buffers[pool].spec.layers - 1)
        super()._move(job, pool, addresses, layers)


class BlockIds(OtherParts):
    """A load takes the number of the host's page for that of the device's."""

    parts = ((cache, "PoolCopier", _ByBlock),)


class OnePageSize(OtherParts):
    """A state's place on the host is found with the page size of attention."""

    parts = ((cache, "PoolCopier", _OnePageSize),)


class TargetLayers(OtherParts):
    """The last layer of each pool is backed up and not brought back, as that of a draft head behind the model's own."""

    parts = ((cache, "PoolCopier", _TargetLayers),)


class _FirstPages(BackupManager):
    def _install(self, transfer: Transfer, component: TreeComponent, node: Node, *, is_done: bool) -> None:
        start, transfer.start = transfer.start, node.start
        super()._install(transfer, component, node, is_done=is_done)
        transfer.start = start


class SplitForgotten(OtherParts):
    """When a backup ends, each part of a node that was cut meanwhile takes the first of its pages."""

    parts = ((cache, "BackupManager", _FirstPages),)


class _OneBuffer(StepExecutor[CopyJob]):
    """Copies a job when it is waited for, and reads only then what is in the buffer."""

    def __init__(self, copier: Copier) -> None:
        super().__init__(CopyWorker(copier))
        self._buffers: dict[tuple[object, ...], Slots] = {}

    def submit(self, job: CopyJob) -> None:
        used: dict[tuple[object, ...], int] = {}
        super().submit(replace(job, parts=tuple([self._staged(job, part, used) for part in job.parts])))

    def _staged(self, job: CopyJob, part: Mapping[str, Move], used: dict[tuple[object, ...], int]) -> dict[str, Move]:
        return {
            name: Move(
                self._kept((job.kind, name, "device"), move.device, used),
                self._kept((job.kind, name, "host"), move.host, used),
            )
            for name, move in part.items()
        }

    def _kept(self, place: tuple[object, ...], pages: Slots, used: dict[tuple[object, ...], int]) -> Slots:
        buffer = self._buffers.setdefault(place, np.zeros(MAX_PAGES, dtype=np.int64))
        start = used.get(place, 0)
        used[place] = start + len(pages)
        buffer[start : used[place]] = pages
        return buffer[start : used[place]]


class OneBuffer(ReferenceAdapter):
    """All jobs of one direction leave their page numbers in one buffer."""

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        self._copies[kind] = _OneBuffer(copier)
        return self._copies[kind]


class _WaitsForNoLayer(StepExecutor[CopyJob]):
    """Copies a job when it is waited for as a whole, and lets a reader of a layer go on at once."""

    def wait_layer(self, number: int, layer: int) -> bool:
        return True


class WaitsForNoLayer(ReferenceAdapter):
    """Lets a reader go on before its data has arrived."""

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        self._copies[kind] = _WaitsForNoLayer(CopyWorker(copier))
        return self._copies[kind]


class _LateCopier(PoolCopier):
    """What is late of one job is copied with the next job of its direction."""

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
    kind, late = TransferKind.BACKUP, tuple(pool for pool in Pool if pool != Pool.KV)


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
    """A backup is acknowledged when its keys and values are there, without its other pools."""

    parts = ((cache, "PoolCopier", _LateSidecars),)


class _FencedBackups(ThreadExecutor[CopyJob]):
    def __init__(self, kind: TransferKind, copier: Copier, fence: Callable[[], None]) -> None:
        super().__init__(f"hicache-{kind.value}", CopyWorker(copier).rest)
        self._fence = fence

    def submit(self, job: CopyJob) -> None:
        if job.kind is TransferKind.BACKUP:
            self._fence()
        super().submit(job)


class NoFence(ReferenceAdapter):
    """The writes of a forward are in its slots when they are read or backed up; a load does not wait for it."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self._queued: list[tuple[str, Slots, int, PageBytes]] = []
        super().__init__(config, groups)

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self._queued.append((pool, slots.copy(), layer, data.copy()))

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        self._retire()
        return super().read(pool, slots, layer)

    def fork_state(self, handle: Node) -> int | None:
        self._retire()
        return super().fork_state(handle)

    def _retire(self) -> None:
        for write in self._queued:
            super().write(*write)
        self._queued.clear()

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        self._copies[kind] = _FencedBackups(kind, copier, self._retire)
        return self._copies[kind]


class _OneCounter(StepExecutor[CopyJob]):
    """Once a load has counted up to the last layer, so has each that comes after it. It is copied with the next."""

    def __init__(self, copier: Copier) -> None:
        super().__init__(CopyWorker(copier))
        self._copier = copier
        self._has_counted = False
        self._owed: list[CopyJob] = []

    def submit(self, job: CopyJob) -> None:
        while self._owed:
            self._copier.copy(self._owed.pop())
        super().submit(job)

    def progress(self, number: int) -> Progress:
        job = self._jobs[number]
        if job.kind is TransferKind.LOAD and self._has_counted:
            return Progress(self._copier.layers, (1,) * len(job.parts), has_ended=True)
        return super().progress(number)

    def wait(self, number: int) -> bool:
        if not self.progress(number).has_ended:
            super().wait(number)
            self._has_counted |= self._jobs[number].kind is TransferKind.LOAD
        return True

    def wait_layer(self, number: int, layer: int) -> bool:
        if self.progress(number).has_ended:
            return True
        has_come = super().wait_layer(number, layer)
        self._has_counted |= super().progress(number).has_ended
        return has_come

    def forget(self, number: int) -> None:
        job = self._jobs[number]
        if job in self.pending():
            self._owed.append(job)
        super().forget(number)


class OneCounter(ReferenceAdapter):
    """A reader that waits for a load looks at the count of the previous load."""

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        self._copies[kind] = _OneCounter(copier)
        return self._copies[kind]


class _Unasked(HybridCacheController):
    kind: ClassVar[TransferKind]

    def take_ended(self, kind: TransferKind) -> Iterator[Transfer]:
        for transfer in super().take_ended(kind):
            transfer.phase = TransferPhase.DONE if kind is self.kind else transfer.phase
            yield transfer


class _UnaskedBackups(_Unasked):
    kind = TransferKind.BACKUP


class _UnaskedLoads(_Unasked):
    kind = TransferKind.LOAD


class FailedBackupTaken(OtherParts):
    """A node whose backup failed leaves the device for the host all the same."""

    parts = ((cache, "HybridCacheController", _UnaskedBackups),)


class FailedLoadTaken(OtherParts):
    """A prefix is read whose load failed."""

    parts = ((cache, "HybridCacheController", _UnaskedLoads),)


class _Credulous(StorageWorker):
    believed: ClassVar[Collection[str]]

    def _read(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        whole = super()._read(backend, job, batch)
        return len(batch.keys) if batch.pool in self.believed else whole


class _AnyPage(_Credulous):
    believed = tuple(Pool)


class _AnyIndex(_Credulous):
    believed = (Pool.INDEXER,)


class _AnyWindow(_Credulous):
    believed = (Pool.SWA,)


class _CountsFirst(StorageWorker):
    _owed: tuple[StorageJob, PageBatch] | None = None

    def _read(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        if self._owed is not None:
            super()._read(backend, *self._owed)
        self._owed = job, batch
        return len(batch.keys)


class DamageUnseen(OtherParts):
    """What was read is taken, whole or not."""

    parts = ((cache, "StorageWorker", _AnyPage),)


class IndexNotAwaited(OtherParts):
    """A prefix is as long as its keys and values, even without its index."""

    parts = ((cache, "StorageWorker", _AnyIndex),)


class WindowInPart(OtherParts):
    """A window is taken of which not every page came."""

    parts = ((cache, "StorageWorker", _AnyWindow),)


class CountsFirst(OtherParts):
    """Pages are counted as read before they are."""

    parts = ((cache, "StorageWorker", _CountsFirst),)
