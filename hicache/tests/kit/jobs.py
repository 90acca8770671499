"""Jobs: copies of pages between the two memories of a small cache, layer by layer when a test says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hicache.testing.adapter import PendingTransfer
from hicache.types import TransferKind

LAYERS = 2

Memory = npt.NDArray[np.uint8]
"""The bytes of every page: uint8, [layers, pages, bytes]."""


@dataclass(slots=True, eq=False)
class Part:
    """One page to copy: its prefix, and its page number on each tier."""

    prefix: bytes
    device: int
    host: int


@dataclass(slots=True, eq=False)
class Job:
    """Parts that are copied together. `parts_done`: how many succeeded, once the job has ended."""

    kind: TransferKind
    parts: Sequence[Part]
    layers_done: int = 0
    parts_done: int | None = None


@dataclass(slots=True, eq=False)
class Jobs:
    """The queued and the started copies, and the memories that they copy between."""

    device: Memory
    host: Memory
    queued: list[Job] = field(default_factory=list)
    started: list[Job] = field(default_factory=list)

    def start(self) -> None:
        """Start the queued copies, one job per direction."""
        for kind in TransferKind:
            parts = [part for job in self.queued if job.kind is kind for part in job.parts]
            if parts:
                self.started.append(Job(kind, parts))
        self.queued.clear()

    def take_ended(self) -> list[Job]:
        """The jobs that have ended, in order; a later job waits for earlier ones of its kind."""
        ended: list[Job] = []
        for kind in TransferKind:
            of_kind = [job for job in self.started if job.kind is kind]
            while of_kind and of_kind[0].parts_done is not None:
                ended.append(of_kind.pop(0))
        self.started = [job for job in self.started if job not in ended]
        return ended

    def in_flight(self, kind: TransferKind) -> list[Part]:
        """The parts of queued and started copies that are not applied yet."""
        return [part for job in (*self.started, *self.queued) if job.kind is kind for part in job.parts]

    def pending(self) -> list[PendingTransfer]:
        """The jobs that a test can advance."""
        return [
            PendingTransfer(job, job.kind, len(job.parts), LAYERS, job.layers_done)
            for job in self.started
            if job.parts_done is None
        ]

    def advance(self, job: Job) -> None:
        """Copy one more layer. After the last layer the job has ended."""
        self._copy(job, job.parts, range(job.layers_done, job.layers_done + 1))
        job.layers_done += 1
        if job.layers_done == LAYERS:
            job.parts_done = len(job.parts)

    def fail(self, job: Job, parts_done: int) -> None:
        """End a job after its first parts; the other parts fail."""
        self._copy(job, job.parts[:parts_done], range(LAYERS))
        job.parts_done = parts_done

    def _copy(self, job: Job, parts: Sequence[Part], layers: range) -> None:
        for part in parts:
            for layer in layers:
                if job.kind is TransferKind.BACKUP:
                    self.host[layer, part.host] = self.device[layer, part.device]
                else:
                    self.device[layer, part.device] = self.host[layer, part.host]
