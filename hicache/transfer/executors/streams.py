"""StreamExecutor: copies on CUDA streams of their own, one for each direction, with an event for each layer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from hicache.transfer.executors.protocol import Copier, Progress
from hicache.transfer.job import Job
from hicache.types import TransferKind

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class QueuedJob:
    """A job on its stream.

    `layers`: an event for each layer, in order; none when the job has failed. `end`: after all that was queued.
    """

    job: Job
    layers: tuple[Any, ...]
    end: Any


class StreamExecutor:
    """Jobs are queued by the caller and run on the GPU, those of one direction in order.

    A job waits for all that the submitting stream was given before: for the kernels that write what is backed up, and
    for those that still read what is overwritten by a load. Copies go straight between the pools, so there are no
    staging buffers that could be used again too early. A job that cannot be queued has failed with none of its parts
    done, once what was queued of it has run; the exception is logged. `cuda`: torch.cuda, or what stands in for it.
    """

    def __init__(self, copier: Copier, cuda: Any = torch.cuda) -> None:
        self._copier = copier
        self._cuda = cuda
        self._streams = {kind: cuda.Stream() for kind in TransferKind}
        self._queued: dict[int, QueuedJob] = {}

    def submit(self, job: Job) -> None:
        stream = self._streams[job.kind]
        stream.wait_stream(self._cuda.current_stream())
        with self._cuda.stream(stream):
            layers = self._queue(job)
        self._queued[job.number] = QueuedJob(job, layers, stream.record_event())

    def progress(self, number: int) -> Progress:
        queued = self._queued[number]
        has_ended = queued.end.query()
        layers = next((place for place, event in enumerate(queued.layers) if not event.query()), len(queued.layers))
        return Progress(layers, has_ended, len(queued.job.parts) if has_ended and queued.layers else 0)

    def wait(self, number: int) -> None:
        self._queued[number].end.synchronize()

    def wait_layer(self, number: int, layer: int) -> None:
        """Let the current stream wait until the layer may be read, or the job has ended. The caller goes on."""
        queued = self._queued[number]
        self._cuda.current_stream().wait_event(queued.layers[layer] if queued.layers else queued.end)

    def forget(self, number: int) -> None:
        del self._queued[number]

    def close(self) -> None:
        """Return when all that was queued has run."""
        for stream in self._streams.values():
            stream.synchronize()

    def _queue(self, job: Job) -> tuple[Any, ...]:
        try:
            # Nobody reads a backup layer by layer, and at once it takes fewer kernels.
            if job.kind is TransferKind.BACKUP:
                self._copier.queue(job)
                return (self._cuda.current_stream().record_event(),) * self._copier.layers
            return tuple([self._queue_layer(job, layer) for layer in range(self._copier.layers)])
        except Exception:
            LOG.exception("%s job %d of %d parts was not queued", job.kind.value, job.number, len(job.parts))
            return ()

    def _queue_layer(self, job: Job, layer: int) -> Any:
        self._copier.queue_layer(job, layer)
        return self._cuda.current_stream().record_event()
