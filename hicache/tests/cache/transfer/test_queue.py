"""TransferQueue and HybridCacheController: what is merged, and when, with which answers and in which order it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Generic

import numpy as np
import pytest

from hicache.tests.cache.pools.two_tiers import storage_job
from hicache.tiers.transfer import HybridCacheController, Transfer
from hicache.transfer.job import NOT_STARTED, CopyJob, JobT, Move, Progress, StorageJob
from hicache.transfer.queue import TransferQueue, complete_together
from hicache.tree.node import Node, NodeShape
from hicache.types import SHARED, StorageKind, TransferKind, TransferPhase


class ManualExecutor(Generic[JobT]):
    """Runs nothing. A wait or a stop ends a job unfinished.

    `jobs`: by number, those that were submitted. `waited`, `forgotten`: the numbers that the queue passed, in order.
    """

    def __init__(self) -> None:
        self.jobs: dict[int, JobT] = {}
        self.waited: list[int] = []
        self.forgotten: list[int] = []
        self._progress: dict[int, Progress] = {}

    def report(self, number: int, *answers: int, has_ended: bool) -> None:
        """From now on a job has these answers, and as many steps."""
        self._progress[number] = Progress(len(answers), answers, has_ended)

    def submit(self, job: JobT) -> None:
        self.jobs[job.number] = job
        self._progress[job.number] = NOT_STARTED

    def progress(self, number: int) -> Progress:
        return self._progress[number]

    def stop(self, number: int) -> None:
        self.report(number, *self._progress[number].answers, has_ended=True)

    def wait(self, number: int) -> bool:
        self.waited.append(number)
        self.stop(number)
        return True

    def is_late(self) -> bool:
        """Never."""
        return False

    def wait_layer(self, number: int, layer: int) -> bool:
        return self.wait(number)

    def release(self, number: int) -> None:
        self.forgotten.append(number)

    def close(self) -> bool:
        """End every job."""
        for number in self._progress:
            self.stop(number)
        return True

    def join(self) -> None:
        """Nothing runs."""


@pytest.fixture
def executor() -> ManualExecutor[StorageJob]:
    """Runs nothing by itself."""
    return ManualExecutor()


@pytest.fixture
def queue(executor: ManualExecutor[StorageJob]) -> TransferQueue[StorageJob]:
    """A queue over that executor."""
    return TransferQueue(executor)


def started(queue: TransferQueue[StorageJob], *pages: int) -> StorageJob:
    """A running job with a batch of so many pages for each of `pages`."""
    job = queue.add(storage_job(queue.started + 1, StorageKind.PREFETCH, *pages))
    queue.start()
    return job


def test_an_end_is_taken_over_once_it_is_settled(
    queue: TransferQueue[StorageJob], executor: ManualExecutor[StorageJob]
) -> None:
    job = started(queue, 4, 2)
    executor.report(job.number, 4, 2, has_ended=True)
    assert queue.outcomes() == [1, 4, 2], "it has ended on this rank, and both batches are whole"
    queue.complete([0, 4, -1])
    assert queue.take(job) is None, "RANK-1: on another rank it has not ended"
    queue.complete([1, 4, 2])
    assert queue.take(job) == (4, 2), "it has ended on every rank"
    assert queue.take(job) is None, "FLOW-4: each job ends once"
    assert executor.forgotten == [job.number], f"the executor forgets it, got {executor.forgotten}"
    assert queue.running == [], f"nothing is left, got {queue.running}"


@pytest.mark.parametrize(
    ("agreed", "expected"),
    [([1, 3, 2], (3,)), ([1, 4, -1], (4,)), ([1, -1, -1], ()), ([1, 0, 2], (0,)), ([1, 4, 1], (4, 1))],
    ids=["a page short", "one rank ended before", "nothing", "no page", "the last batch short"],
)
def test_only_the_unbroken_prefix_of_all_ranks_counts(
    queue: TransferQueue[StorageJob], agreed: list[int], expected: tuple[int, ...]
) -> None:
    job = started(queue, 4, 2)
    queue.complete(agreed)
    answers = queue.take(job)
    assert answers == expected, f"FETCH-7: of {agreed} the batches up to the first gap, {expected}, got {answers}"


def test_a_job_under_way_says_what_it_has(
    queue: TransferQueue[StorageJob], executor: ManualExecutor[StorageJob]
) -> None:
    first, second = started(queue, 4, 2), started(queue, 3)
    executor.report(first.number, 4, has_ended=False)
    executor.report(second.number, 1, has_ended=True)
    outcomes = queue.outcomes()
    assert outcomes == [0, 4, -1, 1, 1], f"in the order of the jobs: ended or not, then each batch, got {outcomes}"


def test_what_was_ended_is_not_taken_over(
    queue: TransferQueue[StorageJob], executor: ManualExecutor[StorageJob]
) -> None:
    job = started(queue, 4)
    queue.complete([1, 4])
    queue.cancel(job)
    assert queue.running == [], f"EVICT-9: nothing is left of it, got {queue.running}"
    assert queue.take(job) is None, "EVICT-9: no late completion"
    assert executor.waited == [job.number], "FLOW-1: the queue waits for its end first"
    assert executor.forgotten == [job.number], f"the executor forgets it, got {executor.forgotten}"


def test_a_job_that_has_not_started_is_stopped_at_once(
    queue: TransferQueue[StorageJob], executor: ManualExecutor[StorageJob]
) -> None:
    job = queue.add(storage_job(1, StorageKind.PREFETCH, 4))
    assert queue.progress(job) == NOT_STARTED, "it waits for the next start"
    assert queue.stop(job), "there is nothing to take of a job that had not started"
    queue.start()
    assert executor.jobs == {}, f"it does not start any more, got {executor.jobs}"
    running = started(queue, 4)
    assert not queue.stop(running), "a job that runs is taken when it has ended"


def test_queues_complete_by_one_agreement(
    queue: TransferQueue[StorageJob], executor: ManualExecutor[StorageJob]
) -> None:
    other = TransferQueue(ManualExecutor[StorageJob]())
    first, second, third = started(queue, 4), started(queue, 3), started(other, 2, 1)
    executor.report(first.number, 4, has_ended=True)
    told: list[tuple[int, list[int]]] = []

    def acknowledge(started: int, outcomes: Sequence[int], bits: int, count: int) -> tuple[Sequence[int], int]:
        told.append((started, list(outcomes)))
        assert (bits, count) == (0, 0), f"no job is a query, got {count} bits"
        return [1, 4, 0, -1, 1, 2, 0, 0], 0

    votes = complete_together([queue, other], acknowledge, [1])
    assert told == [(3, [1, 4, 0, -1, 0, -1, -1, 1])], f"RANK-1: the jobs and outcomes of both queues, got {told}"
    assert votes == [0], f"FLOW-13: the least vote of all ranks, got {votes}"
    assert queue.take(first) == (4,), "the first numbers are those of the first queue"
    assert queue.take(second) is None, "the second job has not ended"
    assert other.take(third) == (2, 0), "the last numbers are those of the other queue"


# HybridCacheController: what is merged, the order in which transfers end, and that each transfer ends once.

BACKUP, LOAD = TransferKind.BACKUP, TransferKind.LOAD

Executors = Mapping[TransferKind, ManualExecutor[CopyJob]]


Controller = HybridCacheController


@pytest.fixture
def executors() -> Executors:
    """One for each direction. They run nothing by themselves."""
    return {kind: ManualExecutor() for kind in TransferKind}


@pytest.fixture
def controller(executors: Executors) -> Controller:
    """A controller over those executors."""
    return HybridCacheController(executors.__getitem__)


def enqueue(controller: Controller, kind: TransferKind, page: int) -> Transfer:
    pages = np.array([page], dtype=np.int64)
    transfer = Transfer.of(
        kind, Node(None, b"", SHARED, 1, NodeShape(1, has_host=True)), {"full": Move(pages, pages)}, []
    )
    controller.enqueue(transfer)
    return transfer


def taken(controller: Controller, kind: TransferKind) -> list[Transfer]:
    """The transfers that have ended on a cache of one rank."""
    queue = controller.queues[kind]
    queue.complete(queue.outcomes())
    return list(controller.take_ended(kind))


def test_a_start_merges_what_is_queued_in_one_direction(controller: Controller, executors: Executors) -> None:
    backups = [enqueue(controller, BACKUP, page) for page in (1, 2)]
    load = enqueue(controller, LOAD, 3)
    controller.start(BACKUP)
    parts = [[move["full"].device.tolist() for move in job.parts] for job in executors[BACKUP].jobs.values()]
    assert parts == [[[1], [2]]], f"one job of two parts in the order of the queue, got {parts}"
    assert [transfer.phase for transfer in (*backups, load)] == [
        TransferPhase.RUNNING,
        TransferPhase.RUNNING,
        TransferPhase.QUEUED,
    ], "the transfer of the other direction waits"


def test_a_start_with_nothing_queued_starts_nothing(controller: Controller, executors: Executors) -> None:
    controller.start(LOAD)
    assert not executors[LOAD].jobs, f"an empty queue is not a job, got {executors[LOAD].jobs}"


def test_what_ends_early_waits_for_what_was_queued_before(controller: Controller, executors: Executors) -> None:
    transfers, executor = [], executors[BACKUP]
    for page in (1, 2):
        transfers.append(enqueue(controller, BACKUP, page))
        controller.start(BACKUP)
    executor.report(2, 1, has_ended=True)
    assert not taken(controller, BACKUP), "HOST-3: the second has ended, the first has not"
    executor.report(1, 1, has_ended=True)
    assert taken(controller, BACKUP) == transfers, "HOST-3: both, in the order in which they were queued"
    assert not taken(controller, BACKUP), "FLOW-4: each transfer ends once"
    assert executor.forgotten == [1, 2], f"the executor forgets both, got {executor.forgotten}"


def test_the_directions_do_not_wait_for_each_other(controller: Controller, executors: Executors) -> None:
    enqueue(controller, BACKUP, 1)
    load = enqueue(controller, LOAD, 2)
    controller.start(BACKUP)
    controller.start(LOAD)
    executors[LOAD].report(2, 1, has_ended=True)
    assert taken(controller, LOAD) == [load], "a load-back does not wait for a backup"
    assert not taken(controller, BACKUP), "the backup has not ended"


def test_what_has_ended_here_waits_for_the_other_ranks(controller: Controller, executors: Executors) -> None:
    transfers = [enqueue(controller, BACKUP, page) for page in (1, 2)]
    queue = controller.queues[BACKUP]
    controller.start(BACKUP)
    executors[BACKUP].report(1, 1, 1, has_ended=True)
    assert queue.outcomes() == [1, 1, 1], "it has ended on this rank, and both parts have come"
    queue.complete([0, -1, -1])
    assert not list(controller.take_ended(BACKUP)), "RANK-1: on another rank it has not ended"
    queue.complete([1, 1, -1])
    assert [transfer.phase for transfer in controller.take_ended(BACKUP)] == [
        TransferPhase.DONE,
        TransferPhase.FAILED,
    ], f"RANK-1: on another rank the second of {len(transfers)} parts failed"


def test_a_job_that_fails_has_done_its_first_parts(controller: Controller, executors: Executors) -> None:
    transfers = [enqueue(controller, LOAD, page) for page in (1, 2, 3)]
    controller.start(LOAD)
    executors[LOAD].report(1, 1, has_ended=True)
    phases = [transfer.phase for transfer in taken(controller, LOAD)]
    assert phases == [TransferPhase.DONE, TransferPhase.FAILED, TransferPhase.FAILED], f"FLOW-3: got {phases}"
    assert not controller.under_way(), f"all {len(transfers)} have ended"


def test_an_abort_ends_everything_once(controller: Controller, executors: Executors) -> None:
    running = enqueue(controller, BACKUP, 1)
    controller.start(BACKUP)
    queued = [enqueue(controller, BACKUP, 2), enqueue(controller, LOAD, 3)]
    aborted = controller.reset()
    assert sorted(map(id, aborted)) == sorted(map(id, [running, *queued])), f"EVICT-9: each of them, got {aborted}"
    assert {transfer.phase for transfer in aborted} == {TransferPhase.ABORTED}, "none of them counts as done"
    assert executors[BACKUP].waited == [1], "FLOW-1: the running job ends before its pages are freed"
    assert not executors[LOAD].waited, "no load-back ran"
    assert not controller.under_way(), "nothing is left"
    assert not taken(controller, BACKUP), "EVICT-9: no late completion"


def test_layers_are_those_of_the_operation_s_own_job(controller: Controller, executors: Executors) -> None:
    first, executor = enqueue(controller, LOAD, 1), executors[LOAD]
    controller.start(LOAD)
    second = enqueue(controller, LOAD, 2)
    executor.report(1, 1, has_ended=False)
    assert controller.layers_done(first) == 1, "as many as its job has done"
    assert controller.layers_done(second) == 0, "HOST-6: a transfer in the queue has no layer yet, while others run"
    assert not controller.wait_layer(second, 0), "HOST-6: nothing of a transfer in the queue may be read"
    assert not executor.waited, f"a transfer in the queue has no job to wait for, got {executor.waited}"
    assert controller.wait_layer(first, 0), "the executor says that the layer may be read"
    assert executor.waited == [1], f"the wait is for the transfer's own job, got {executor.waited}"
    assert taken(controller, LOAD) == [first], "the first transfer has ended"
    assert controller.wait_layer(first, 5), "HOST-6: all layers of a transfer that is done may be read"
