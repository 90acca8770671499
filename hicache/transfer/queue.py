"""TransferQueue: jobs that wait, run or have ended, on this rank or on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic

from hicache.transfer.executors import Executor
from hicache.transfer.job import NOT_STARTED, Answers, JobT, Progress

NOT_DONE = -1
"""In an outcome: a part that was not done."""

Acknowledge = Callable[[int, Sequence[int]], Sequence[int]]
"""The element-wise minimum over ranks. The first argument, the number of started jobs, must be equal on all ranks."""


class TransferQueue(Generic[JobT]):
    """The jobs of one executor. A job counts as ended when it has ended on every rank, successfully or not.

    `started`: how many jobs were added since the cache was opened.
    """

    def __init__(self, executor: Executor[JobT]) -> None:
        self.started = 0
        self._executor = executor
        self._waiting: dict[int, JobT] = {}
        self._running: dict[int, JobT] = {}
        self._complete: dict[int, Answers] = {}

    @property
    def running(self) -> list[JobT]:
        """The jobs that run, or have ended and were not taken, the oldest first."""
        return list(self._running.values())

    @property
    def lengths(self) -> tuple[int, int]:
        """How many jobs wait, and how many run or have ended and were not taken. Any thread may ask."""
        return len(self._waiting), len(self._running)

    def add(self, job: JobT) -> JobT:
        """Let a job wait for the next start."""
        self.started += 1
        self._waiting[job.number] = job
        return job

    def start(self) -> None:
        """Run what waits."""
        waiting, self._waiting = self._waiting, {}
        for number, job in waiting.items():
            self._running[number] = job
            self._executor.submit(job)

    def progress(self, job: JobT) -> Progress:
        """How far a job has come on this rank. A job that is not running has not started."""
        return self._executor.progress(job.number) if job.number in self._running else NOT_STARTED

    def outcomes(self) -> list[int]:
        """Of each job that runs: 1 once it has ended on this rank, or 0, and then the answer to each of its parts."""
        return [number for job in self._running.values() for number in _outcome(job, self.progress(job))]

    def complete(self, outcomes: Sequence[int]) -> None:
        """Note which jobs have ended, by the outcomes that all ranks agreed on."""
        first = 0
        for job in self._running.values():
            has_ended, *answers = outcomes[first : first + 1 + len(job.parts)]
            first += 1 + len(job.parts)
            if has_ended:
                self._complete[job.number] = _unbroken(job, answers)

    def take(self, job: JobT) -> Answers | None:
        """The answers of a job that is complete, once; None for one that is not."""
        answers = self._complete.pop(job.number, None)
        if answers is not None:
            self._release(job)
        return answers

    def stop(self, job: JobT) -> bool:
        """Let a job end as soon as it can; True when it had not started, so that there is nothing to take."""
        if self._waiting.pop(job.number, None) is not None:
            return True
        self._executor.stop(job.number)
        return False

    def cancel(self, job: JobT) -> None:
        """Stop a job, wait for its end, and drop its result."""
        if not self.stop(job):
            self._executor.wait(job.number)
            self._complete.pop(job.number, None)
            self._release(job)

    def wait(self) -> None:
        """Return when all that runs has ended on this rank."""
        for number in list(self._running):
            self._executor.wait(number)

    @property
    def is_late(self) -> bool:
        """Whether what runs on this rank takes longer than it may."""
        return self._executor.is_late()

    def wait_for(self, job: JobT) -> bool:
        """Return when a running job has ended on this rank, or when what runs is late. Whether the job has ended."""
        return self._executor.wait(job.number)

    def wait_layer(self, job: JobT, layer: int) -> bool:
        """Return when a layer of a running copy may be read, or the copy has ended. Whether the layer may be read."""
        return self._executor.wait_layer(job.number, layer)

    def close(self) -> bool:
        """End the executor. Whether it has stopped; False when what runs is late."""
        return self._executor.close()

    def join(self) -> None:
        """Return when the closed executor has stopped, however long that takes."""
        self._executor.join()

    def _release(self, job: JobT) -> None:
        del self._running[job.number]
        self._executor.release(job.number)


def complete_together(queues: Sequence[TransferQueue[Any]], acknowledge: Acknowledge, *, is_late: bool = False) -> bool:
    """Complete what has ended on every rank, in all queues by one agreement. Every rank passes the same queues.

    Returns whether `is_late` is true on any rank.
    """
    outcomes = [queue.outcomes() for queue in queues]
    started = sum(queue.started for queue in queues)
    *agreed, is_on_time = acknowledge(started, [*(n for of_queue in outcomes for n in of_queue), int(not is_late)])
    first = 0
    for queue, of_queue in zip(queues, outcomes, strict=True):
        queue.complete(agreed[first : first + len(of_queue)])
        first += len(of_queue)
    return not is_on_time


def _outcome(job: JobT, progress: Progress) -> list[int]:
    lacking = len(job.parts) - len(progress.answers)
    return [int(progress.has_ended), *progress.answers, *([NOT_DONE] * lacking)]


def _unbroken(job: JobT, answers: Sequence[int]) -> Answers:
    """The answers up to the first part that is not whole on every rank."""
    found: list[int] = []
    for part, answer in enumerate(answers):
        if answer == NOT_DONE:
            break
        found.append(answer)
        if not job.is_whole(part, answer):
            break
    return tuple(found)
