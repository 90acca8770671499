"""TransferQueue: what has ended here is taken over when it has ended on every rank, as far as it is whole there."""

from __future__ import annotations

import numpy as np
import pytest

from hicache.transfer.job import PageBatch, Progress, StorageJob
from hicache.transfer.queue import TransferQueue
from hicache.types import Pool, StorageKind


class HandStorage:
    """Jobs stand as the test says."""

    def __init__(self) -> None:
        self.standing: dict[int, Progress] = {}
        self.forgotten: list[int] = []

    def submit(self, job: StorageJob) -> None:
        self.standing[job.number] = Progress((), has_ended=False)

    def progress(self, number: int) -> Progress:
        return self.standing[number]

    def stop(self, number: int) -> None:
        self.wait(number)

    def wait(self, number: int) -> None:
        self.standing[number] = Progress(self.standing[number].answers, has_ended=True)

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    def close(self) -> None:
        self.standing.clear()


@pytest.fixture
def storage() -> HandStorage:
    """Who asks nothing by itself."""
    return HandStorage()


@pytest.fixture
def queue(storage: HandStorage) -> TransferQueue:
    """A queue over it."""
    return TransferQueue(storage)


def asked(queue: TransferQueue, *pages: int) -> StorageJob:
    batches = tuple(
        PageBatch(Pool.KV, tuple(f"kv/{number}" for number in range(count)), np.arange(count)) for count in pages
    )
    job = queue.ask(StorageKind.PREFETCH, batches, ())
    queue.start()
    return job


def test_an_end_is_taken_over_once_it_is_settled(queue: TransferQueue, storage: HandStorage) -> None:
    job = asked(queue, 4, 2)
    storage.standing[job.number] = Progress((4, 2), has_ended=True)
    assert queue.outcomes() == [1, 4, 2], "it has ended here, and both batches are whole"
    queue.settle([0, 4, -1])
    assert queue.take_over(job) is None, "RANK-1: another rank is not so far"
    queue.settle([1, 4, 2])
    assert queue.take_over(job) == Progress((4, 2), has_ended=True), "it has ended everywhere"
    assert queue.take_over(job) is None, "FLOW-4: each ends once"
    assert storage.forgotten == [job.number], "the executor is told"
    assert queue.is_idle, "nothing is left"


@pytest.mark.parametrize(
    ("agreed", "expected"),
    [([1, 3, 2], (3,)), ([1, 4, -1], (4,)), ([1, -1, -1], ()), ([1, 0, 2], (0,)), ([1, 4, 1], (4, 1))],
    ids=["a page short", "one rank ended before", "nothing", "no page", "the last batch short"],
)
def test_only_the_unbroken_prefix_of_all_ranks_counts(
    queue: TransferQueue, agreed: list[int], expected: tuple[int, ...]
) -> None:
    job = asked(queue, 4, 2)
    queue.settle(agreed)
    progress = queue.take_over(job)
    assert progress is not None, "it is settled that it has ended"
    assert progress.answers == expected, f"FETCH-7: of {agreed} the batches up to the first gap, {expected}"


def test_a_job_under_way_says_what_it_has(queue: TransferQueue, storage: HandStorage) -> None:
    first, second = asked(queue, 4, 2), asked(queue, 3)
    storage.standing[first.number] = Progress((4,), has_ended=False)
    storage.standing[second.number] = Progress((1,), has_ended=True)
    assert queue.outcomes() == [0, 4, -1, 1, 1], "in the order in which they were asked: ended or not, then each batch"


def test_what_was_ended_is_not_taken_over(queue: TransferQueue, storage: HandStorage) -> None:
    job = asked(queue, 4)
    queue.settle([1, 4])
    queue.end(job)
    assert queue.is_idle, "EVICT-9: nothing is left of it"
    assert queue.take_over(job) is None, "EVICT-9: no late completion"
    assert storage.forgotten == [job.number], "the executor is told"
