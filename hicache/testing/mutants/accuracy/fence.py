"""Loads into slots to which a forward is still writing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hicache.config import CacheConfig
from hicache.parallel.group import Group
from hicache.testing.adapter import PageBytes
from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.transfer.executors import Executor, ThreadExecutor
from hicache.transfer.job import Copier, CopyJob, CopyWorker
from hicache.tree.node import Node
from hicache.types import Pool, Slots, TransferKind


class _FencedBackups(ThreadExecutor[CopyJob]):
    def __init__(self, kind: TransferKind, copier: Copier, fence: Callable[[], None]) -> None:
        super().__init__(f"hicache-{kind.value}", CopyWorker(copier).rest)
        self._fence = fence

    def submit(self, job: CopyJob) -> None:
        if job.kind is TransferKind.BACKUP:
            self._fence()
        super().submit(job)


class NoFence(ReferenceAdapter):
    """What a forward writes is in its slots when somebody reads them, or backs them up; a load does not wait for it."""

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self._queued: list[tuple[Pool, Slots, int, PageBytes]] = []
        super().__init__(config, groups)

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        self._queued.append((pool, slots.copy(), layer, data.copy()))

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        self._retire()
        return super().read(pool, slots, layer)

    def fork_state(self, handle: Node) -> int | None:
        self._retire()
        return super().fork_state(handle)

    def _retire(self) -> None:
        for write in self._queued:
            super().write(*write)
        self._queued.clear()

    def _open_copies(self, kind: TransferKind, copier: Copier) -> Executor[CopyJob]:
        self._copies[kind] = _FencedBackups(kind, copier, self._retire)
        return self._copies[kind]
