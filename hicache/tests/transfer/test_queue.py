"""TransferQueue: a job ends when it has ended on every rank, with the answers that are whole on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache.tests.transfer.manual_executor import ManualExecutor
from hicache.tests.transfer.scripted_storage import job_of
from hicache.transfer.job import NOT_STARTED, StorageJob
from hicache.transfer.queue import TransferQueue, complete_together
from hicache.types import StorageKind


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
    job = queue.add(job_of(queue.started + 1, StorageKind.PREFETCH, *pages))
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
    queue.end(job)
    assert queue.running == [], f"EVICT-9: nothing is left of it, got {queue.running}"
    assert queue.take(job) is None, "EVICT-9: no late completion"
    assert executor.waited == [job.number], "FLOW-1: the queue waits for its end first"
    assert executor.forgotten == [job.number], f"the executor forgets it, got {executor.forgotten}"


def test_a_job_that_has_not_started_is_stopped_at_once(
    queue: TransferQueue[StorageJob], executor: ManualExecutor[StorageJob]
) -> None:
    job = queue.add(job_of(1, StorageKind.PREFETCH, 4))
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

    def acknowledge(started: int, outcomes: Sequence[int]) -> Sequence[int]:
        told.append((started, list(outcomes)))
        return [1, 4, 0, -1, 1, 2, 0]

    complete_together([queue, other], acknowledge)
    assert told == [(3, [1, 4, 0, -1, 0, -1, -1])], f"RANK-1: the jobs and outcomes of both queues, got {told}"
    assert queue.take(first) == (4,), "the first numbers are those of the first queue"
    assert queue.take(second) is None, "the second job has not ended"
    assert other.take(third) == (2, 0), "the last numbers are those of the other queue"
