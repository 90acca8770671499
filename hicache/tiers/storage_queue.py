"""StorageQueue: the jobs for storage that wait, run, or have ended and were not taken over."""

from __future__ import annotations

from hicache.transfer.storage_job import (
    PageBatch,
    PrefixQuery,
    StorageExecutor,
    StorageJob,
    StorageProgress,
)
from hicache.types import StorageKind

NOTHING_YET = StorageProgress((), has_ended=False)


class StorageQueue:
    """Jobs wait for `start`. Each is taken over once, in any order."""

    def __init__(self, executor: StorageExecutor) -> None:
        self._executor = executor
        self._waiting: dict[int, StorageJob] = {}
        self._running: set[int] = set()
        self._serial = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is to be taken over."""
        return not self._waiting and not self._running

    def ask(
        self, kind: StorageKind, batches: tuple[PageBatch | PrefixQuery, ...], prefix_keys: tuple[str, ...]
    ) -> StorageJob:
        """A job that waits for the next start."""
        self._serial += 1
        job = StorageJob(self._serial, kind, batches, prefix_keys)
        self._waiting[job.number] = job
        return job

    def start(self) -> None:
        """Run what waits."""
        waiting, self._waiting = self._waiting, {}
        for number, job in waiting.items():
            self._running.add(number)
            self._executor.submit(job)

    def progress(self, job: StorageJob) -> StorageProgress:
        """How far a job has come that was not taken over."""
        return self._executor.progress(job.number) if job.number in self._running else NOTHING_YET

    def take_over(self, job: StorageJob) -> StorageProgress | None:
        """The end of a job, once; None while it has not ended."""
        progress = self.progress(job)
        if not progress.has_ended:
            return None
        self._running.remove(job.number)
        self._executor.forget(job.number)
        return progress

    def stop(self, job: StorageJob) -> bool:
        """Let a job end as soon as it may; True when it had not begun, so that nothing of it is to be taken over."""
        if self._waiting.pop(job.number, None) is not None:
            return True
        self._executor.stop(job.number)
        return False

    def wait(self) -> None:
        """Return when all that runs has ended."""
        for number in sorted(self._running):
            self._executor.wait(number)

    def end(self, job: StorageJob) -> None:
        """Stop a job, wait for its end, and ask for nothing of it."""
        if not self.stop(job):
            self._executor.wait(job.number)
            self.take_over(job)

    def close(self) -> None:
        """End the executor."""
        self._executor.close()
