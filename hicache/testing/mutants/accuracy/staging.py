"""Page numbers that wait for their copy in memory that the next job uses as well."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hicache.testing.adapters.reference import ReferenceAdapter
from hicache.transfer.executors import Executor, StepExecutor
from hicache.transfer.job import Copier, CopyJob, CopyWorker, Move
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

    def _open_copies(self, kind: TransferKind, copier: Copier) -> Executor[CopyJob]:
        self._copies[kind] = _OneBuffer(copier)
        return self._copies[kind]
