"""StreamExecutor: copies on a CUDA stream of their own, with an event for each layer."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from hicache.optional_torch import torch
from hicache.transfer.job import Copier, CopyJob, Progress
from hicache.types import TransferKind

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class QueuedJob:
    """A job on the stream.

    `layers`: an event for each layer, in order; none when the job has failed. `end`: after all that was queued.
    """

    job: CopyJob
    layers: tuple[Any, ...]
    end: Any


class StreamExecutor:
    """The caller queues jobs, and the GPU runs them in order.

    A job waits for all that the submitting stream was given before: for the kernels that write what is backed up, and
    for those that still read what a load-back overwrites. Copies go straight between the pools, so no staging buffer
    can be reused too early. A job that cannot be queued has failed with none of its parts done, once what was queued of
    it has run; the exception is logged. The stream and its events are on the device of the copier, whether or not it is
    the current one. `cuda`: replaces torch.cuda in a test.
    """

    def __init__(self, copier: Copier, cuda: Any = None) -> None:
        self._copier = copier
        self._cuda = torch.cuda if cuda is None else cuda
        self._stream = self._cuda.Stream(copier.device)
        self._queued: dict[int, QueuedJob] = {}

    def submit(self, job: CopyJob) -> None:
        self._stream.wait_stream(self._cuda.current_stream(self._copier.device))
        with self._cuda.stream(self._stream):
            layers = self._queue(job)
        self._queued[job.number] = QueuedJob(job, layers, self._stream.record_event())

    def progress(self, number: int) -> Progress:
        queued = self._queued[number]
        has_ended = queued.end.query()
        layers = next((place for place, event in enumerate(queued.layers) if not event.query()), len(queued.layers))
        is_done = has_ended and queued.layers
        return Progress(layers, (1,) * len(queued.job.parts) if is_done else (), has_ended)

    def stop(self, number: int) -> None:
        """What was queued on a GPU runs to its end."""

    def wait(self, number: int) -> bool:
        self._queued[number].end.synchronize()
        return True

    def is_late(self) -> bool:
        """Never: a GPU ends what it was given."""
        return False

    def wait_layer(self, number: int, layer: int) -> bool:
        """Let the current stream wait until the layer may be read, or the job has ended. The caller goes on."""
        queued = self._queued[number]
        reader = self._cuda.current_stream(self._copier.device)
        reader.wait_event(queued.layers[layer] if queued.layers else queued.end)
        return bool(queued.layers)

    def release(self, number: int) -> None:
        del self._queued[number]

    def close(self) -> bool:
        """Return when all that was queued has run."""
        self._stream.synchronize()
        return True

    def join(self) -> None:
        """Nothing runs after `close`."""

    def _queue(self, job: CopyJob) -> tuple[Any, ...]:
        try:
            # No reader follows a backup layer by layer, and all layers at once take fewer kernels.
            if job.kind is TransferKind.BACKUP:
                self._copier.queue(job)
                return (self._stream.record_event(),) * self._copier.layers
            return tuple([self._queue_layer(job, layer) for layer in range(self._copier.layers)])
        except Exception:
            LOG.exception("%s job %d of %d parts was not queued", job.kind.value, job.number, len(job.parts))
            return ()

    def _queue_layer(self, job: CopyJob, layer: int) -> Any:
        self._copier.queue_layer(job, layer)
        return self._stream.record_event()
