"""Jobs: pages that a small cache copies between its two memories, layer by layer as a test asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hicache.testing.host_verbs import PendingTransfer
from hicache.types import TransferKind

LAYERS = 2

Memory = npt.NDArray[np.uint8]
"""Bytes of every page: uint8, [layers, pages, bytes]."""


@dataclass(slots=True, eq=False)
class Part:
    """One page to copy: the prefix that it belongs to, and where it lies on each tier."""

    prefix: bytes
    device: int
    host: int


@dataclass(slots=True, eq=False)
class Job:
    """Parts that are copied in one go. `parts_done`: how many arrived, once it has ended."""

    kind: TransferKind
    parts: Sequence[Part]
    layers_done: int = 0
    parts_done: int | None = None


@dataclass(slots=True, eq=False)
class Jobs:
    """What is queued and what was started, and the memories that the bytes move between."""

    device: Memory
    host: Memory
    queued: list[Job] = field(default_factory=list)
    started: list[Job] = field(default_factory=list)

    def start(self) -> None:
        """Start what is queued, one job for each way."""
        for kind in TransferKind:
            parts = [part for job in self.queued if job.kind is kind for part in job.parts]
            if parts:
                self.started.append(Job(kind, parts))
        self.queued.clear()

    def take_ended(self) -> list[Job]:
        """The jobs that have ended, in order; a later one waits for an earlier one of its kind."""
        ended: list[Job] = []
        for kind in TransferKind:
            of_kind = [job for job in self.started if job.kind is kind]
            while of_kind and of_kind[0].parts_done is not None:
                ended.append(of_kind.pop(0))
        self.started = [job for job in self.started if job not in ended]
        return ended

    def under_way(self, kind: TransferKind) -> list[Part]:
        """The parts of what is queued or started and was not taken over."""
        return [part for job in (*self.started, *self.queued) if job.kind is kind for part in job.parts]

    def pending(self) -> list[PendingTransfer]:
        """What a test may move."""
        return [
            PendingTransfer(job, job.kind, len(job.parts), LAYERS, job.layers_done)
            for job in self.started
            if job.parts_done is None
        ]

    def advance(self, job: Job) -> None:
        """Copy one more layer; after the last one the job has ended."""
        self._copy(job, job.parts, range(job.layers_done, job.layers_done + 1))
        job.layers_done += 1
        if job.layers_done == LAYERS:
            job.parts_done = len(job.parts)

    def fail(self, job: Job, parts_done: int) -> None:
        """End a job with its first parts alone."""
        self._copy(job, job.parts[:parts_done], range(LAYERS))
        job.parts_done = parts_done

    def _copy(self, job: Job, parts: Sequence[Part], layers: range) -> None:
        for part in parts:
            for layer in layers:
                if job.kind is TransferKind.BACKUP:
                    self.host[layer, part.host] = self.device[layer, part.device]
                else:
                    self.device[layer, part.device] = self.host[layer, part.host]
