"""Copies that take more than a change of text: what is late is kept until a later call. ROWS names the test of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from hicache.config import CacheConfig
from hicache.parallel.group import Group
from hicache.testing.adapter import PageBytes
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.tests.proof.mutants.rows import Row
from hicache.transfer.executors import Executor, StepExecutor, ThreadExecutor
from hicache.transfer.job import Copier, CopyJob, CopyWorker, LayeredCopier, Move, Progress
from hicache.tree.node import Node
from hicache.types import Slots, TransferKind

MAX_PAGES = 4096


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

    def release(self, number: int) -> None:
        job = self._jobs[number]
        if job in self.pending():
            self._owed.append(job)
        super().release(number)


class OneCounter(ReferenceAdapter):
    """A reader that waits for a load looks at the count of the previous load."""

    def _open_copies(self, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
        self._copies[kind] = _OneCounter(copier)
        return self._copies[kind]


HOST = "test_families.py::test_the_host_answers_as_no_cache_would[qwen3-float32]"
FROM_HOST = r"REQ-3: \d+ tokens from host, and \d+ more: expected the logits of the cache that was never stored"

ROWS = (
    Row(
        slug="no-fence-before-a-load",
        source="sglang#36738",
        clauses=("FLOW-1",),
        adapter=NoFence,
        test=HOST,
        told=FROM_HOST,
        quick_test="conformance/test_host_bytes.py::test_a_host_copy_has_the_bytes_of_the_device",
    ),
    Row(
        slug="one-buffer-for-all-jobs",
        source="TensorRT-LLM#15546",
        clauses=("FLOW-1",),
        adapter=OneBuffer,
        test=HOST,
        told=FROM_HOST,
        quick_test="conformance/test_load_back.py::test_what_another_load_brought_stays_while_a_load_still_waits",
    ),
    Row(
        slug="one-counter-for-all-loads",
        source="sglang#7267",
        clauses=("FLOW-2",),
        adapter=OneCounter,
        test=HOST,
        told=FROM_HOST,
        quick_test="conformance/test_host_bytes.py::test_a_host_copy_has_the_bytes_of_the_device",
    ),
)
