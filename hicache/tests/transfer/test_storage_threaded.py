"""ThreadExecutor: reading and writing go on side by side; what it says is done is done; stopping ends a job early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hicache.tests.transfer.storage_jobs import PATIENCE_S, ToldWorker, job_of
from hicache.transfer.executors import ThreadExecutor
from hicache.transfer.job import Progress
from hicache.types import StorageKind


def no_pause() -> None:
    """Go on."""


@pytest.fixture
def worker() -> ToldWorker:
    """Its gate is closed."""
    return ToldWorker([2, 2, 2, 2])


@pytest.fixture
def storage(worker: ToldWorker) -> Iterator[ThreadExecutor]:
    """Closed at the end, with the gate open."""
    storage = ThreadExecutor(worker, no_pause)
    yield storage
    worker.gate.set()
    storage.close()


def test_progress_follows_the_bytes(worker: ToldWorker, storage: ThreadExecutor) -> None:
    storage.submit(job_of(1, StorageKind.PREFETCH, 2, 2))
    assert worker.entered.wait(PATIENCE_S), "the worker takes the job"
    assert storage.progress(1) == Progress((), has_ended=False), "FLOW-2: nothing is there while it runs"
    worker.gate.set()
    storage.wait(1)
    assert storage.progress(1) == Progress((2, 2), has_ended=True), "both batches are done"


def test_what_is_stopped_while_it_runs_ends_with_that_batch(worker: ToldWorker, storage: ThreadExecutor) -> None:
    storage.submit(job_of(1, StorageKind.PREFETCH, 2, 2))
    assert worker.entered.wait(PATIENCE_S), "the worker takes the job"
    storage.stop(1)
    worker.gate.set()
    storage.wait(1)
    assert storage.progress(1) == Progress((2,), has_ended=True), "the running batch was finished, no other"


def test_what_is_stopped_before_its_turn_asks_nothing(worker: ToldWorker, storage: ThreadExecutor) -> None:
    storage.submit(job_of(1, StorageKind.PREFETCH, 2))
    storage.submit(job_of(2, StorageKind.PREFETCH, 2))
    storage.stop(2)
    worker.gate.set()
    storage.wait(2)
    assert storage.progress(2) == Progress((), has_ended=True), "it ended with nothing"
    assert worker.asked == [(1, 0)], "the first alone was done"


def test_a_writer_does_not_wait_for_a_reader() -> None:
    reading = ToldWorker([2, 2])
    storage = ThreadExecutor(reading, no_pause)
    storage.submit(job_of(1, StorageKind.PREFETCH, 2))
    assert reading.entered.wait(PATIENCE_S), "the reader stands at the gate"
    reading.entered.clear()
    storage.submit(job_of(2, StorageKind.STORE, 2))
    assert reading.entered.wait(PATIENCE_S), "the writer comes to the gate while the reader stands there"
    reading.gate.set()
    storage.wait(1)
    storage.wait(2)
    storage.close()


def test_a_closed_executor_takes_no_job(worker: ToldWorker, storage: ThreadExecutor) -> None:
    worker.gate.set()
    storage.close()
    with pytest.raises(RuntimeError, match="closed"):
        storage.submit(job_of(1, StorageKind.PREFETCH, 2))
