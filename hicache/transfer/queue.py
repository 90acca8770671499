"""TransferQueue: jobs that wait, run or have ended; HybridCacheController: the queues of backups and load-backs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from hicache.transfer.executors import Executor
from hicache.transfer.job import NOT_STARTED, Answers, CopyJob, JobT, Move, Progress
from hicache.types import TransferKind, TransferPhase

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
            self._forget(job)
        return answers

    def stop(self, job: JobT) -> bool:
        """Let a job end as soon as it can; True when it had not started, so that there is nothing to take."""
        if self._waiting.pop(job.number, None) is not None:
            return True
        self._executor.stop(job.number)
        return False

    def end(self, job: JobT) -> None:
        """Stop a job, wait for its end, and drop its result."""
        if not self.stop(job):
            self._executor.wait(job.number)
            self._complete.pop(job.number, None)
            self._forget(job)

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

    def _forget(self, job: JobT) -> None:
        del self._running[job.number]
        self._executor.forget(job.number)


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


class Transfer(Protocol):
    """What the controller knows of a transfer: pages that start and end as one, by component."""

    @property
    def kind(self) -> TransferKind:
        """Which way it moves them."""

    @property
    def moves(self) -> Mapping[str, Move]:
        """What it moves."""

    phase: TransferPhase


TransferT = TypeVar("TransferT", bound=Transfer)


class HybridCacheController(Generic[TransferT]):
    """Backups and load-backs. Transfers wait until `start` merges those of one direction into one job.

    Transfers of one direction end in the order in which they were queued: what was finished early waits for those
    before. `queues`: by direction, each with an executor of its own. `numbers`: of all jobs of the cache, so that those
    of storage are in one order with the copies.
    """

    def __init__(self, open_executor: Callable[[TransferKind], Executor[CopyJob]]) -> None:
        self.queues = {kind: TransferQueue(open_executor(kind)) for kind in TransferKind}
        self.numbers = count(1)
        self._queued: dict[TransferKind, list[TransferT]] = {kind: [] for kind in TransferKind}
        self._running: dict[TransferKind, deque[tuple[CopyJob, list[TransferT]]]] = {
            kind: deque() for kind in TransferKind
        }

    def enqueue(self, transfer: TransferT) -> None:
        """Let a transfer wait for the next start."""
        self._queued[transfer.kind].append(transfer)

    def start(self, kind: TransferKind) -> None:
        """Merge what waits in one direction into a job, and run it."""
        transfers = self._queued[kind]
        if not transfers:
            return
        self._queued[kind] = []
        job = CopyJob(next(self.numbers), kind, tuple([transfer.moves for transfer in transfers]))
        for transfer in transfers:
            transfer.phase = TransferPhase.RUNNING
        self._running[kind].append((job, transfers))
        self.queues[kind].add(job)
        self.queues[kind].start()

    def take_ended(self, kind: TransferKind) -> Iterator[TransferT]:
        """The transfers of one direction that have ended, in order, as done or failed. Each is given out once."""
        running = self._running[kind]
        while running and (answers := self.queues[kind].take(running[0][0])) is not None:
            _, transfers = running.popleft()
            done = sum(map(bool, answers))
            for place, transfer in enumerate(transfers):
                transfer.phase = TransferPhase.DONE if place < done else TransferPhase.FAILED
                yield transfer

    def wait(self, kind: TransferKind) -> None:
        """Return when all that runs in one direction has ended on this rank."""
        self.queues[kind].wait()

    def abort(self) -> list[TransferT]:
        """End everything: what waits never starts, and the result of what runs is dropped. Returns all of them."""
        aborted: list[TransferT] = []
        for kind in TransferKind:
            for job, transfers in self._running[kind]:
                self.queues[kind].end(job)
                aborted += transfers
            self._running[kind].clear()
            aborted += self._queued[kind]
            self._queued[kind] = []
        for transfer in aborted:
            transfer.phase = TransferPhase.ABORTED
        return aborted

    def under_way(self) -> list[TransferT]:
        """The transfers that run or wait."""
        running = [transfer for jobs in self._running.values() for _, transfers in jobs for transfer in transfers]
        return running + [transfer for queue in self._queued.values() for transfer in queue]

    def lengths(self, kind: TransferKind) -> tuple[int, int]:
        """How many transfers of one direction wait for the next start, and how many jobs run. Any thread may ask."""
        return len(self._queued[kind]), len(self._running[kind])

    def layers_done(self, transfer: TransferT) -> int:
        """How many layers of the stack have arrived, of a transfer under way."""
        job = self._job_of(transfer)
        return 0 if job is None else self.queues[transfer.kind].progress(job).steps

    def wait_layer(self, transfer: TransferT, layer: int) -> bool:
        """Return when a layer of a running transfer may be read, or it has ended. Whether the layer may be read."""
        job = self._job_of(transfer)
        if job is None:
            return transfer.phase is TransferPhase.DONE
        return self.queues[transfer.kind].wait_layer(job, layer)

    def close(self) -> None:
        """End everything, and the executors."""
        self.abort()
        self.end()

    def end(self) -> bool:
        """End the executors. Whether they have stopped."""
        have_ended = [queue.close() for queue in self.queues.values()]
        return all(have_ended)

    def _job_of(self, transfer: TransferT) -> CopyJob | None:
        for job, transfers in self._running[transfer.kind]:
            if any(transfer is other for other in transfers):
                return job
        return None
