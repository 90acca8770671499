"""HybridCacheController: the queues of both directions, what is merged and started, and what is taken over in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from hicache.transfer.executors.protocol import Executor
from hicache.transfer.job import Job, Move
from hicache.types import TransferKind, TransferPhase


class Operation(Protocol):
    """What is started, and ends, as one: the pages of one stretch, by component."""

    @property
    def kind(self) -> TransferKind:
        """Which way it moves them."""

    @property
    def moves(self) -> Mapping[str, Move]:
        """What it moves."""

    phase: TransferPhase


OperationT = TypeVar("OperationT", bound=Operation)


class HybridCacheController(Generic[OperationT]):
    """Operations wait in a queue per direction until `start` merges each queue into one job.

    Operations of one direction end in the order in which they were queued: what finished early waits for those before.
    A job has ended when it is settled so: where there are several ranks, when it has ended on each.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._queued: dict[TransferKind, list[OperationT]] = {kind: [] for kind in TransferKind}
        self._running: dict[TransferKind, deque[tuple[Job, list[OperationT]]]] = {
            kind: deque() for kind in TransferKind
        }
        self._settled: dict[int, int] = {}
        self.started = 0

    def enqueue(self, operation: OperationT) -> None:
        """Let an operation wait for the next start."""
        self._queued[operation.kind].append(operation)

    def start(self, kind: TransferKind) -> None:
        """Merge what is queued in one direction into a job, and have it run."""
        operations = self._queued[kind]
        if not operations:
            return
        self._queued[kind] = []
        self.started += 1
        job = Job(self.started, kind, tuple([operation.moves for operation in operations]))
        for operation in operations:
            operation.phase = TransferPhase.RUNNING
        self._running[kind].append((job, operations))
        self._executor.submit(job)

    def outcomes(self, kind: TransferKind) -> list[int]:
        """Of each job of one direction that runs: 0, or, once it has ended here, one more than the parts that came."""
        return [self._outcome(job) for job, _ in self._running[kind]]

    def settle(self, kind: TransferKind, outcomes: Sequence[int]) -> None:
        """What `outcomes` come to in the end, on all ranks together."""
        for (job, _), outcome in zip(self._running[kind], outcomes, strict=True):
            if outcome:
                self._settled[job.number] = outcome - 1

    def take_ended(self, kind: TransferKind) -> Iterator[OperationT]:
        """The operations of one direction that have ended, in order, as done or failed. Each is given out once."""
        running = self._running[kind]
        while running and (parts_done := self._settled.pop(running[0][0].number, None)) is not None:
            job, operations = running.popleft()
            self._executor.forget(job.number)
            for place, operation in enumerate(operations):
                operation.phase = TransferPhase.DONE if place < parts_done else TransferPhase.FAILED
                yield operation

    def wait(self, kind: TransferKind) -> None:
        """Return when all that runs in one direction has ended."""
        for job, _ in self._running[kind]:
            self._executor.wait(job.number)

    def abort(self) -> list[OperationT]:
        """End everything: what is queued never starts, and the result of what runs is not asked for."""
        aborted: list[OperationT] = []
        for kind in TransferKind:
            self.wait(kind)
            for job, operations in self._running[kind]:
                self._executor.forget(job.number)
                self._settled.pop(job.number, None)
                aborted += operations
            self._running[kind].clear()
            aborted += self._queued[kind]
            self._queued[kind] = []
        for operation in aborted:
            operation.phase = TransferPhase.ABORTED
        return aborted

    def under_way(self) -> list[OperationT]:
        """What is queued or running."""
        running = [operation for jobs in self._running.values() for _, operations in jobs for operation in operations]
        return running + [operation for queue in self._queued.values() for operation in queue]

    def jobs(self) -> list[Job]:
        """The jobs that run, or have ended and were not taken over, the oldest first."""
        return sorted((job for jobs in self._running.values() for job, _ in jobs), key=lambda job: job.number)

    def layers_done(self, operation: OperationT) -> int:
        """How many layers of the stack have arrived, of an operation under way."""
        job = self._job_of(operation)
        return 0 if job is None else self._executor.progress(job.number).layers

    def wait_layer(self, operation: OperationT, layer: int) -> None:
        """Return when a layer of a running operation may be read, or it has ended."""
        job = self._job_of(operation)
        if job is not None:
            self._executor.wait_layer(job.number, layer)

    def close(self) -> None:
        """End everything, and the executor."""
        self.abort()
        self._executor.close()

    def _outcome(self, job: Job) -> int:
        progress = self._executor.progress(job.number)
        return progress.parts_done + 1 if progress.has_ended else 0

    def _job_of(self, operation: OperationT) -> Job | None:
        for job, operations in self._running[operation.kind]:
            if any(operation is other for other in operations):
                return job
        return None
