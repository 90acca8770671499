"""ThreadStorage: one thread that reads from storage, and one that writes to it."""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Condition, Thread

from hicache.transfer.storage_job import StorageJob, StorageProgress, StorageWorker, is_whole
from hicache.types import StorageKind


class ThreadStorage:
    """Queries and fetches run in order, beside what is persisted. `pause`: called by a worker before each batch."""

    def __init__(self, worker: StorageWorker, pause: Callable[[], None]) -> None:
        self._worker = worker
        self._pause = pause
        self._progress: dict[int, StorageProgress] = {}
        self._stopped: set[int] = set()
        self._is_closing = False
        self._changed = Condition()
        reading: SimpleQueue[StorageJob | None] = SimpleQueue()
        writing: SimpleQueue[StorageJob | None] = SimpleQueue()
        self._queues = {StorageKind.QUERY: reading, StorageKind.FETCH: reading, StorageKind.PERSIST: writing}
        self._threads = [
            Thread(target=self._run, args=(queue,), name=f"hicache-storage-{name}", daemon=True)
            for name, queue in (("read", reading), ("write", writing))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: StorageJob) -> None:
        """Start a job. Raises RuntimeError when the executor is closed."""
        with self._changed:
            if self._is_closing:
                raise RuntimeError(f"storage job {job.number} was submitted to a closed executor")
            self._progress[job.number] = StorageProgress((), has_ended=not job.batches)
        self._queues[job.kind].put(job)

    def progress(self, number: int) -> StorageProgress:
        with self._changed:
            return self._progress[number]

    def stop(self, number: int) -> None:
        with self._changed:
            self._stopped.add(number)

    def wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._progress[number].has_ended)

    def forget(self, number: int) -> None:
        with self._changed:
            del self._progress[number]
            self._stopped.discard(number)

    def close(self) -> None:
        """Finish the batches that are running, let the rest end as it is, and end the threads."""
        with self._changed:
            self._is_closing = True
        for queue in set(self._queues.values()):
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, queue: SimpleQueue[StorageJob | None]) -> None:
        while (job := queue.get()) is not None:
            answers: tuple[int, ...] = ()
            for batch in job.batches:
                if self._is_stopped(job):
                    break
                self._pause()
                answers = (*answers, self._worker.work(job, batch))
                if not is_whole(batch, answers[-1]):
                    break
                # The bytes are there: only now may anybody hear of them.
                self._publish(job, StorageProgress(answers, has_ended=False))
            self._publish(job, StorageProgress(answers, has_ended=True))

    def _is_stopped(self, job: StorageJob) -> bool:
        with self._changed:
            return self._is_closing or job.number in self._stopped

    def _publish(self, job: StorageJob, progress: StorageProgress) -> None:
        with self._changed:
            self._progress[job.number] = progress
            self._changed.notify_all()
