"""ThreadExecutor: one thread for each direction, which copies one job after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Event, Thread

from hicache.transfer.executors.protocol import Copier, Progress
from hicache.transfer.job import Job
from hicache.types import TransferKind

LOG = logging.getLogger(__name__)


class ThreadExecutor:
    """Jobs of one direction run in order, beside those of the other. Only bytes move here.

    `pause`: called by a worker before each job; in production it does nothing. A job is copied at once, so all its
    layers arrive together: layer by layer, scattered pages would take half as long again. A job whose copy raises
    has failed with none of its parts done; the exception is logged.
    """

    def __init__(self, copier: Copier, pause: Callable[[], None]) -> None:
        self._copier = copier
        self._pause = pause
        self._progress: dict[int, Progress] = {}
        self._changed = Condition()
        self._closing = Event()
        self._queues: dict[TransferKind, SimpleQueue[Job | None]] = {kind: SimpleQueue() for kind in TransferKind}
        self._workers = [
            Thread(target=self._work, args=(queue,), name=f"hicache-{kind.value}", daemon=True)
            for kind, queue in self._queues.items()
        ]
        for worker in self._workers:
            worker.start()

    @property
    def is_open(self) -> bool:
        """Whether it takes jobs."""
        return not self._closing.is_set()

    def submit(self, job: Job) -> None:
        """Start a job after those of its direction. Raises RuntimeError when the executor is closed."""
        if not self.is_open:
            raise RuntimeError(f"job {job.number} was submitted to a closed executor")
        self._publish(job, Progress(layers=0, has_ended=False, parts_done=0))
        self._queues[job.kind].put(job)

    def progress(self, number: int) -> Progress:
        with self._changed:
            return self._progress[number]

    def wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._progress[number].has_ended)

    def wait_layer(self, number: int, layer: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._progress[number].layers > layer or self._progress[number].has_ended)

    def forget(self, number: int) -> None:
        with self._changed:
            del self._progress[number]

    def close(self) -> None:
        """Finish the jobs that are being copied, let those that wait fail, and end the threads."""
        self._closing.set()
        for queue in self._queues.values():
            queue.put(None)
        for worker in self._workers:
            worker.join()

    def _work(self, queue: SimpleQueue[Job | None]) -> None:
        while (job := queue.get()) is not None:
            is_copied = self._copy(job)
            # The bytes are there: only now may anybody hear of it.
            self._publish(job, Progress(self._copier.layers if is_copied else 0, True, len(job.parts) * is_copied))

    def _copy(self, job: Job) -> bool:
        if not self.is_open:
            return False
        try:
            self._pause()
            self._copier.copy(job)
        except Exception:
            LOG.exception("%s job %d of %d parts was not copied", job.kind.value, job.number, len(job.parts))
            return False
        return True

    def _publish(self, job: Job, progress: Progress) -> None:
        with self._changed:
            self._progress[job.number] = progress
            self._changed.notify_all()
