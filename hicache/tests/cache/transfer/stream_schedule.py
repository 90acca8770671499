"""StreamSchedule: back-ups and loads as the scheduler of a cache makes them, beside what the model computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from hicache.pools.buffers import RawBytes, TierPools
from hicache.tests.cache.pools.two_tiers import FULL, MAMBA, SWA, job_of
from hicache.tests.cache.transfer.gpu import Gpu, in_memory
from hicache.transfer.executors import Executor
from hicache.transfer.job import CopyJob
from hicache.types import TransferKind

MAX_POLLS = 40
"""Of a job, before the host waits for it."""

Pages = Mapping[str, tuple[list[int], list[int]]]
"""Device pages and host pages by component."""

BACKUPS: tuple[Pages, ...] = (
    {FULL: ([1, 2], [1, 3]), SWA: ([1], [2]), MAMBA: ([1], [1])},
    {FULL: ([3], [2]), SWA: ([2, 3], [1, 4]), MAMBA: ([3], [4])},
)
LOADS: tuple[Pages, ...] = (
    {FULL: ([5, 7], [5, 6]), SWA: ([5], [5]), MAMBA: ([4], [3])},
    {FULL: ([6], [7]), SWA: ([6], [6]), MAMBA: ([5], [5])},
)
"""No two jobs have a page in common."""

Rows = dict[tuple[str, int, int], RawBytes]
"""The bytes of the pages of a job in one layer, by pool, buffer and layer: [pages, page_size, slot_bytes]."""


@dataclass(frozen=True, slots=True, eq=False)
class StreamSchedule:
    """Rounds of jobs on a GPU. `wrong`: where bytes were not those expected."""

    gpu: Gpu
    wrong: list[str] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    numbers: list[int] = field(default_factory=lambda: [0])

    def round(self, *, by_layers: bool) -> None:
        """Two back-ups of what is being computed, and two loads into pages that are still read.

        `by_layers`: each load is read layer by layer as it arrives; otherwise when the job has ended. What has been
        copied is used at once: the host reads its pages, the model computes in those of the device, and storage writes
        into the pages that were loaded from.
        """
        gpu = self.gpu
        backups = [self._job(TransferKind.BACKUP, pages) for pages in BACKUPS]
        loads = [self._job(TransferKind.LOAD, pages) for pages in LOADS]
        stored = [self._fetch(job) for job in loads]
        overwritten = [self._seen(job) for job in loads]
        computed = [self._compute(job) for job in backups]
        for job in backups:
            gpu.backups.submit(job)
        read_before = [self._read(job) for job in loads]
        for job in loads:
            gpu.loads.submit(job)
        read_after = [self._read_by_layers(job) for job in loads] if by_layers else []
        for job, rows in zip(backups, computed, strict=True):
            self._end(gpu.backups, job)
            self._expect(f"on the host after back-up {job.number}", self._on_host(job), rows)
            self._compute(job)
        for job in loads:
            self._end(gpu.loads, job)
            read_after += [] if by_layers else [self._read(job)]
        gpu.compute_stream.synchronize()
        for place, job in enumerate(loads):
            self._expect(f"before load {job.number}", read_before[place], overwritten[place])
            self._expect(f"after load {job.number}", read_after[place], stored[place])

    def interrupt(self) -> None:
        """The cache is closed while a back-up and a load are under way."""
        backup, load = self._job(TransferKind.BACKUP, BACKUPS[0]), self._job(TransferKind.LOAD, LOADS[0])
        self._compute(backup)
        self.gpu.backups.submit(backup)
        self.gpu.loads.submit(load)
        self.gpu.close()

    def _job(self, kind: TransferKind, pages: Pages) -> CopyJob:
        self.numbers[0] += 1
        return job_of(kind, [pages], self.numbers[0])

    def _compute(self, job: CopyJob) -> Rows:
        """A kernel writes to the device pages of a job."""
        rows: Rows = {}
        for key, raw, pages in _layers_of(self.gpu.tiers.device, job):
            rows[key] = self.random.integers(0, 256, (len(pages), *raw.shape[1:]), dtype=np.uint8)
            self._launch_write(raw, pages, torch.from_numpy(rows[key]))
        return rows

    def _launch_write(self, raw: torch.Tensor, pages: torch.Tensor, rows: torch.Tensor) -> None:
        memory = in_memory(raw)
        self.gpu.cuda.kernel("compute", lambda: memory.index_put_((pages,), rows), writes=[(raw, (pages,))])

    def _read(self, job: CopyJob) -> Rows:
        """Kernels read the device pages of a job. The rows are there when they have run."""
        found: Rows = {}
        for layer in _layers_of(self.gpu.tiers.device, job):
            self._launch_read(found, *layer)
        return found

    def _launch_read(self, found: Rows, key: tuple[str, int, int], raw: torch.Tensor, pages: torch.Tensor) -> None:
        memory = in_memory(raw)
        self.gpu.cuda.kernel("attention", lambda: found.update({key: memory[pages].numpy()}), [(raw, (pages,))])

    def _read_by_layers(self, job: CopyJob) -> Rows:
        """Kernels read the device pages of a load, each layer when it has arrived."""
        found: Rows = {}
        layers = list(_layers_of(self.gpu.tiers.device, job))
        for place, own in enumerate(self.gpu.tiers.order):
            self.gpu.loads.wait_layer(job.number, place)
            for key, raw, pages in layers:
                if (key[0], key[2]) in own:
                    self._launch_read(found, key, raw, pages)
        return found

    def _seen(self, job: CopyJob) -> Rows:
        """What is in the device pages of a job, when nothing writes to them."""
        return {key: in_memory(raw)[pages].numpy() for key, raw, pages in _layers_of(self.gpu.tiers.device, job)}

    def _fetch(self, job: CopyJob) -> Rows:
        """Storage writes to the host pages of a job."""
        rows: Rows = {}
        for key, raw, pages in _layers_of(self.gpu.tiers.host, job):
            rows[key] = self.random.integers(0, 256, (len(pages), *raw.shape[1:]), dtype=np.uint8)
            self.gpu.cuda.host_touches(raw, (pages,), is_write=True, operation="fetch of storage")
            raw.numpy()[pages.numpy()] = rows[key]
        return rows

    def _on_host(self, job: CopyJob) -> Rows:
        """The host reads its pages of a job, to store them."""
        found: Rows = {}
        for key, raw, pages in _layers_of(self.gpu.tiers.host, job):
            self.gpu.cuda.host_touches(raw, (pages,), operation="store of storage")
            found[key] = raw.numpy()[pages.numpy()]
        return found

    def _end(self, executor: Executor[CopyJob], job: CopyJob) -> None:
        for _ in range(MAX_POLLS):
            if executor.progress(job.number).has_ended:
                break
        else:
            executor.wait(job.number)
        progress = executor.progress(job.number)
        if progress.answers != (1,):
            self.wrong.append(f"{job.kind.value} {job.number} ended with {progress}")
        executor.release(job.number)

    def _expect(self, when: str, found: Rows, rows: Rows) -> None:
        differing = [key for key in rows if key not in found or not np.array_equal(found[key], rows[key])]
        if differing:
            self.wrong.append(f"{when}: the bytes of {differing} differ")


def _layers_of(pools: TierPools, job: CopyJob) -> Iterator[tuple[tuple[str, int, int], torch.Tensor, torch.Tensor]]:
    """Each layer of each buffer that a job copies: its name, its bytes [pages, page_size, slot_bytes], the pages."""
    (part,) = job.parts
    for pool, buffers in pools.buffers.items():
        move = part[buffers.spec.owner]
        pages = torch.from_numpy(move.host if buffers.raw[0].device.type == "cpu" else move.device)
        for number, raw in enumerate(buffers.raw):
            for layer in range(buffers.spec.layers):
                yield (pool, number, layer), raw[:, layer], pages
