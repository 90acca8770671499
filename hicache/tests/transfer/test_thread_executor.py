"""ThreadExecutor: progress follows the bytes, jobs run in order, a stopped job ends early, a failure ends one job."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread

import pytest

from hicache.config import ExecutorKind
from hicache.runtime import open_copies, open_storage
from hicache.tests.transfer import scripted_storage
from hicache.tests.transfer.scripted_storage import TIMEOUT_S, ScriptedStorage, worker_of
from hicache.transfer.executors import ThreadExecutor
from hicache.transfer.job import NOT_STARTED, CopyJob, CopyWorker, Progress, StorageJob
from hicache.types import StorageKind, TransferKind

LAYERS = 3
BACKUP, LOAD = TransferKind.BACKUP, TransferKind.LOAD
WHOLE = Progress(LAYERS, (1, 1), has_ended=True)
FAILED = Progress(0, (), has_ended=True)


class GatedCopier:
    """Copies when the gate of the direction is open.

    `entered`: set when a copy has begun. `copied`: the jobs that were copied, in order. `broken`: the jobs that raise.
    """

    def __init__(self, *broken: int) -> None:
        self.layers = LAYERS
        self.gates = {kind: Event() for kind in TransferKind}
        self.entered = {kind: Event() for kind in TransferKind}
        self.copied: list[int] = []
        self._broken = broken

    def copy(self, job: CopyJob) -> None:
        """Copy a job once its gate is open."""
        self.entered[job.kind].set()
        assert self.gates[job.kind].wait(TIMEOUT_S), f"the gate was not opened within {TIMEOUT_S} s"
        if job.number in self._broken:
            raise OSError(f"memory of job {job.number} is broken")
        self.copied.append(job.number)

    def copy_layer(self, job: CopyJob, layer: int) -> None:
        """Not called: a thread copies all layers at once."""
        raise NotImplementedError

    queue_layer = copy_layer
    queue = copy


def job(number: int, kind: TransferKind, parts: int = 2) -> CopyJob:
    return CopyJob(number, kind, tuple([{} for _ in range(parts)]))


@pytest.fixture
def copier() -> GatedCopier:
    """Its gates are closed, and its second job is broken."""
    return GatedCopier(2)


@pytest.fixture
def executor(copier: GatedCopier) -> Iterator[ThreadExecutor[CopyJob]]:
    """Copies on a thread. Closed at the end, with the gates open."""
    executor = ThreadExecutor("copies", CopyWorker(copier).rest)
    yield executor
    open_gates(copier)
    executor.close()


def open_gates(copier: GatedCopier) -> None:
    for gate in copier.gates.values():
        gate.set()


@pytest.fixture
def backend() -> ScriptedStorage:
    """Its gate is closed."""
    return ScriptedStorage([2, 2, 2, 2])


@pytest.fixture
def storage(backend: ScriptedStorage) -> Iterator[ThreadExecutor[StorageJob]]:
    """Calls the backend on a thread. Closed at the end, with the gate open."""
    storage = ThreadExecutor("storage", worker_of(backend).step)
    yield storage
    backend.gate.set()
    storage.close()


# Copies.


def test_progress_of_a_copy_follows_the_bytes(copier: GatedCopier, executor: ThreadExecutor[CopyJob]) -> None:
    executor.submit(job(1, BACKUP))
    assert copier.entered[BACKUP].wait(TIMEOUT_S), "the thread takes the job"
    assert executor.progress(1) == NOT_STARTED, "FLOW-2: nothing has arrived while the copy runs"
    copier.gates[BACKUP].set()
    executor.wait(1)
    assert copier.copied == [1], "FLOW-2: the bytes are there before the job has ended"
    assert executor.progress(1) == WHOLE, "all layers and parts have arrived"


@pytest.mark.parametrize("wait", ["wait", "wait_layer"])
def test_who_waits_is_woken_by_the_end(copier: GatedCopier, executor: ThreadExecutor[CopyJob], wait: str) -> None:
    seen: list[bool] = []

    def reader() -> None:
        executor.wait(1) if wait == "wait" else executor.wait_layer(1, LAYERS - 1)
        seen.append(1 in copier.copied)

    executor.submit(job(1, LOAD))
    thread = Thread(target=reader)
    thread.start()
    assert copier.entered[LOAD].wait(TIMEOUT_S), "the thread takes the job"
    assert not seen, "HOST-6: the reader waits while the copy runs"
    copier.gates[LOAD].set()
    thread.join(TIMEOUT_S)
    assert seen == [True], f"HOST-6: the reader goes on once the bytes are there, got {seen}"


def test_jobs_of_a_direction_run_in_order(copier: GatedCopier, executor: ThreadExecutor[CopyJob]) -> None:
    open_gates(copier)
    for number in (1, 3, 4):
        executor.submit(job(number, BACKUP))
    executor.wait(4)
    assert copier.copied == [1, 3, 4], f"in the order of their submission, got {copier.copied}"
    assert executor.progress(1).has_ended, "the first ended before"


def test_directions_do_not_wait_for_each_other(copier: GatedCopier) -> None:
    backups, loads = (open_copies(ExecutorKind.THREADED, kind, copier) for kind in (BACKUP, LOAD))
    with closing(backups), closing(loads):
        backups.submit(job(1, BACKUP))
        loads.submit(job(3, LOAD))
        copier.gates[LOAD].set()
        loads.wait(3)
        assert not backups.progress(1).has_ended, "the backup is behind a closed gate"
        open_gates(copier)


def test_a_copy_that_raises_fails_its_job_alone_and_is_logged_once(
    copier: GatedCopier, executor: ThreadExecutor[CopyJob], caplog: pytest.LogCaptureFixture
) -> None:
    open_gates(copier)
    with caplog.at_level(logging.ERROR):
        for number in (1, 2, 3):
            executor.submit(job(number, LOAD))
        executor.wait(3)
    assert executor.progress(2) == FAILED, "FLOW-3: nothing of a failed job has arrived"
    assert executor.progress(3) == WHOLE, "FLOW-4: the thread goes on with the next job"
    executor.wait_layer(2, 0)
    logged = [(record.getMessage(), str(record.exc_info and record.exc_info[1])) for record in caplog.records]
    assert logged == [("load job 2 of 2 parts failed", "memory of job 2 is broken")], f"once, got {logged}"


def test_a_pause_comes_before_each_job() -> None:
    copier, pauses = GatedCopier(), list[int]()
    open_gates(copier)
    executor = ThreadExecutor("copies", CopyWorker(copier).rest, lambda: pauses.append(len(copier.copied)))
    for number in (1, 2, 3):
        executor.submit(job(number, LOAD))
    executor.wait(3)
    executor.close()
    assert pauses == [0, 1, 2], f"a pause before the first, the second and the third job, got {pauses}"


def test_the_end_finishes_what_runs_and_drops_what_waits(
    copier: GatedCopier, executor: ThreadExecutor[CopyJob]
) -> None:
    executor.submit(job(1, BACKUP))
    executor.submit(job(3, BACKUP))
    assert copier.entered[BACKUP].wait(TIMEOUT_S), "the thread takes the first job"
    closer = Thread(target=executor.close)
    closer.start()
    while not executor._is_closing:
        assert closer.is_alive(), "the executor is closed by now"
    copier.gates[BACKUP].set()
    closer.join(TIMEOUT_S)
    assert copier.copied == [1], "the copy that runs is finished, the next one is not begun"
    assert executor.progress(1) == WHOLE, "the first job is whole"
    assert executor.progress(3) == FAILED, "FLOW-4: the second job has ended too"
    with pytest.raises(RuntimeError, match="job 4 was submitted to a closed executor"):
        executor.submit(job(4, LOAD))


# Storage jobs.


def test_progress_of_a_storage_job_follows_the_bytes(
    backend: ScriptedStorage, storage: ThreadExecutor[StorageJob]
) -> None:
    storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2, 2))
    assert backend.entered.wait(TIMEOUT_S), "the thread takes the job"
    assert storage.progress(1) == NOT_STARTED, "FLOW-2: nothing has arrived while the batch runs"
    backend.gate.set()
    storage.wait(1)
    assert storage.progress(1) == Progress(2, (2, 2), has_ended=True), "both batches are done"


def test_what_is_stopped_while_it_runs_ends_with_that_batch(
    backend: ScriptedStorage, storage: ThreadExecutor[StorageJob]
) -> None:
    storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2, 2))
    assert backend.entered.wait(TIMEOUT_S), "the thread takes the job"
    storage.stop(1)
    backend.gate.set()
    storage.wait(1)
    assert storage.progress(1) == Progress(1, (2,), has_ended=True), "the running batch was finished, and no other"


def test_what_is_stopped_before_its_turn_asks_nothing(
    backend: ScriptedStorage, storage: ThreadExecutor[StorageJob]
) -> None:
    storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2))
    storage.submit(scripted_storage.job_of(2, StorageKind.PREFETCH, 2))
    storage.stop(2)
    backend.gate.set()
    storage.wait(2)
    assert storage.progress(2) == FAILED, "the job ended with nothing done"
    assert backend.calls == [(1, 0)], f"the first job alone was done, got {backend.calls}"


def test_a_writer_does_not_wait_for_a_reader(backend: ScriptedStorage) -> None:
    worker = worker_of(backend)
    reads, writes = (open_storage(ExecutorKind.THREADED, name, worker) for name in ("read", "write"))
    with closing(reads), closing(writes):
        reads.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2))
        assert backend.entered.wait(TIMEOUT_S), "the reader is at the gate"
        backend.entered.clear()
        writes.submit(scripted_storage.job_of(2, StorageKind.STORE, 2))
        assert backend.entered.wait(TIMEOUT_S), "the writer comes to the gate while the reader is there"
        backend.gate.set()
        reads.wait(1)
        writes.wait(2)


def test_a_closed_executor_takes_no_job(backend: ScriptedStorage, storage: ThreadExecutor[StorageJob]) -> None:
    backend.gate.set()
    storage.close()
    with pytest.raises(RuntimeError, match="closed"):
        storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2))
