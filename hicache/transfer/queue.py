"""TransferQueue: jobs that wait, run or have ended, on this rank or on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from typing import Any, Generic

from hicache.transfer.executors import Executor
from hicache.transfer.job import NOT_STARTED, Answers, JobT, Progress

NOT_DONE = -1
"""In an outcome: a part that was not done."""

BITS_A_STEP = 1 << 16
"""So many bits of sets a rank sends in one step, 8 KiB; of larger sets, or of more of them, the rest in later steps."""

Acknowledge = Callable[[int, Sequence[int], int, int], tuple[Sequence[int], int]]
"""What all ranks have: the least of each number, and the bits that are set on all.

The first argument, the number of started jobs, must be equal on all ranks; the last one is how many bits there are.
"""


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
        self._common: dict[int, tuple[int, int]] = {}

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
        """Of each job that runs: 1 once it has ended on this rank, or 0, and then each answer that is a number."""
        return [number for job in self._running.values() for number in _outcome(job, self.progress(job))]

    def sets(self) -> list[tuple[int, int]]:
        """Of each job that answers with a set: bits that were not sent yet, the lowest first, and how many they are."""
        room, sets = BITS_A_STEP, list[tuple[int, int]]()
        for job in self._running.values():
            if job.bits:
                sent, answers = self._common.get(job.number, (0, 0))[0], self.progress(job).answers
                count = min(room, job.bits - sent)
                room -= count
                sets.append(((sum(answers) >> sent) & ((1 << count) - 1), count))
        return sets

    def complete(self, outcomes: Sequence[int], sets: Sequence[tuple[int, int]] = ()) -> None:
        """Note which jobs have ended, by the outcomes and the sets that all ranks agreed on."""
        numbers, common = iter(outcomes), iter(sets)
        for job in self._running.values():
            has_ended, *answers = islice(numbers, 1 + (0 if job.bits else len(job.parts)))
            bits, count = next(common) if job.bits else (0, 0)
            if has_ended and job.number not in self._complete:
                sent, before = self._common.pop(job.number, (0, 0))
                whole = before | bits << sent
                if sent + count < job.bits:
                    self._common[job.number] = (sent + count, whole)
                else:
                    self._complete[job.number] = (whole,) if job.bits else _unbroken(job, answers)

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
        self._common.pop(job.number, None)
        self._executor.release(job.number)


def complete_together(
    queues: Sequence[TransferQueue[Any]], acknowledge: Acknowledge, votes: Sequence[int] = ()
) -> Sequence[int]:
    """Complete what has ended on every rank, in all queues by one agreement. Every rank passes the same queues.

    Returns the least of each of the `votes` over all ranks.
    """
    outcomes, sets = [queue.outcomes() for queue in queues], [queue.sets() for queue in queues]
    bits, count = _joined([one for of_queue in sets for one in of_queue])
    started = sum(queue.started for queue in queues)
    agreed, common = acknowledge(started, [*chain.from_iterable(outcomes), *votes], bits, count)
    first = 0
    for queue, numbers, own in zip(queues, outcomes, sets, strict=True):
        own_count = sum(count for _, count in own)
        queue.complete(agreed[first : first + len(numbers)], _split(common, [count for _, count in own]))
        first, common = first + len(numbers), common >> own_count
    return agreed[first:]


def _joined(sets: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """The bits of several sets as those of one, the first set lowest, and how many they are."""
    joined, total = 0, 0
    for bits, count in sets:
        joined, total = joined | bits << total, total + count
    return joined, total


def _split(joined: int, counts: Sequence[int]) -> list[tuple[int, int]]:
    """The sets again, by how many bits each has."""
    sets = []
    for count in counts:
        sets.append((joined & ((1 << count) - 1), count))
        joined >>= count
    return sets


def _outcome(job: JobT, progress: Progress) -> list[int]:
    if job.bits:
        return [int(progress.has_ended)]
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
