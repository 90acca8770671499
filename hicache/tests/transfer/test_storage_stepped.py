"""StepExecutor: a batch is done when a test says so, and a job ends with its last, a short or a stopped one."""

from __future__ import annotations

import pytest

from hicache.tests.transfer.storage_jobs import ToldWorker, job_of, query_of
from hicache.transfer.executors import StepExecutor
from hicache.transfer.job import Progress
from hicache.types import StorageKind


def told(*answers: int) -> tuple[ToldWorker, StepExecutor]:
    worker = ToldWorker(answers)
    worker.gate.set()
    return worker, StepExecutor(worker)


def test_nothing_is_asked_by_itself() -> None:
    worker, storage = told(2)
    storage.submit(job_of(1, StorageKind.PREFETCH, 2))
    assert worker.asked == [], "a job waits until it is advanced"
    assert storage.progress(1) == Progress((), has_ended=False), "and has not begun"
    assert [job.number for job in storage.pending()] == [1], "it is pending"


def test_a_job_goes_batch_by_batch_to_its_end() -> None:
    worker, storage = told(2, 3)
    storage.submit(job_of(1, StorageKind.STORE, 2, 3))
    storage.advance(1)
    assert storage.progress(1) == Progress((2,), has_ended=False), "one of two batches"
    storage.advance(1)
    assert storage.progress(1) == Progress((2, 3), has_ended=True), "both"
    assert worker.asked == [(1, 0), (1, 1)], "in order"
    with pytest.raises(ValueError, match="has ended"):
        storage.advance(1)


def test_a_job_ends_with_the_first_batch_that_is_not_whole() -> None:
    worker, storage = told(1)
    storage.submit(job_of(1, StorageKind.PREFETCH, 2, 3))
    storage.wait(1)
    assert storage.progress(1) == Progress((1,), has_ended=True), "FETCH-4: nothing is read past a gap"
    assert worker.asked == [(1, 0)], "the second batch was not asked for"


def test_any_answer_to_a_query_is_whole() -> None:
    _, storage = told(0)
    storage.submit(query_of(1))
    storage.wait(1)
    assert storage.progress(1) == Progress((0,), has_ended=True), "0 pages is an answer"


def test_what_is_stopped_still_does_the_batch_that_runs() -> None:
    worker, storage = told(2, 3)
    storage.submit(job_of(1, StorageKind.PREFETCH, 2, 3))
    storage.stop(1)
    assert not storage.progress(1).has_ended, "FLOW-1: the running batch still writes to its pages"
    storage.advance(1)
    assert storage.progress(1) == Progress((2,), has_ended=True), "it ends after that"
    assert worker.asked == [(1, 0)], "and asks for no more"


def test_a_closed_executor_asks_nothing_more() -> None:
    worker, storage = told(2)
    storage.submit(job_of(1, StorageKind.PREFETCH, 2))
    storage.close()
    assert storage.progress(1) == Progress((), has_ended=True), "it ended as it was"
    assert worker.asked == [], "nothing was asked"


def test_a_forgotten_job_is_unknown() -> None:
    _, storage = told(2)
    storage.submit(job_of(1, StorageKind.PREFETCH, 2))
    storage.wait(1)
    storage.forget(1)
    with pytest.raises(KeyError):
        storage.progress(1)
