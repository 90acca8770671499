"""StorageQueue: the jobs for storage that wait, run, or have ended and were not taken over."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.transfer.storage_job import (
    PageBatch,
    PrefixQuery,
    StorageExecutor,
    StorageJob,
    StorageProgress,
    is_whole,
)
from hicache.types import StorageKind

NOTHING_YET = StorageProgress((), has_ended=False)

UNANSWERED = -1
"""In an outcome: a batch that was not done."""


class StorageQueue:
    """Jobs wait for `start`. Each is taken over once, in any order, when it is settled that it has ended."""

    def __init__(self, executor: StorageExecutor) -> None:
        self._executor = executor
        self._waiting: dict[int, StorageJob] = {}
        self._running: dict[int, StorageJob] = {}
        self._settled: dict[int, StorageProgress] = {}
        self.asked = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is to be taken over."""
        return not self._waiting and not self._running

    def ask(
        self, kind: StorageKind, batches: tuple[PageBatch | PrefixQuery, ...], prefix_keys: tuple[str, ...]
    ) -> StorageJob:
        """A job that waits for the next start."""
        self.asked += 1
        job = StorageJob(self.asked, kind, batches, prefix_keys)
        self._waiting[job.number] = job
        return job

    def start(self) -> None:
        """Run what waits."""
        waiting, self._waiting = self._waiting, {}
        for number, job in waiting.items():
            self._running[number] = job
            self._executor.submit(job)

    def progress(self, job: StorageJob) -> StorageProgress:
        """How far a job has come here that was not taken over."""
        return self._executor.progress(job.number) if job.number in self._running else NOTHING_YET

    def outcomes(self) -> list[int]:
        """Of each job that runs: 1 once it has ended here, or 0, and then the answer to each of its batches."""
        return [number for job in self._running.values() for number in _outcome(job, self.progress(job))]

    def settle(self, outcomes: Sequence[int]) -> None:
        """What `outcomes` come to in the end, on all ranks together."""
        first = 0
        for job in self._running.values():
            has_ended, *answers = outcomes[first : first + 1 + len(job.batches)]
            first += 1 + len(job.batches)
            if has_ended:
                self._settled[job.number] = StorageProgress(_unbroken(job, answers), has_ended=True)

    def take_over(self, job: StorageJob) -> StorageProgress | None:
        """The end of a job, once; None while it is not settled."""
        progress = self._settled.pop(job.number, None)
        if progress is not None:
            self._forget(job)
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
            self._settled.pop(job.number, None)
            self._forget(job)

    def close(self) -> None:
        """End the executor."""
        self._executor.close()

    def _forget(self, job: StorageJob) -> None:
        del self._running[job.number]
        self._executor.forget(job.number)


def _outcome(job: StorageJob, progress: StorageProgress) -> list[int]:
    lacking = len(job.batches) - len(progress.answers)
    return [int(progress.has_ended), *progress.answers, *([UNANSWERED] * lacking)]


def _unbroken(job: StorageJob, answers: Sequence[int]) -> tuple[int, ...]:
    """The answers up to the first batch that is not whole on every rank."""
    found: list[int] = []
    for batch, answer in zip(job.batches, answers, strict=True):
        if answer == UNANSWERED:
            break
        found.append(answer)
        if not is_whole(batch, answer):
            break
    return tuple(found)
