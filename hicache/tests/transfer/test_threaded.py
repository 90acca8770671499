"""ThreadExecutor: what it says has arrived has arrived, each direction in order, and a failure ends one job only."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from threading import Event, Thread

import pytest

from hicache.transfer.executors import ThreadExecutor
from hicache.transfer.job import CopyJob, Progress
from hicache.types import TransferKind

LAYERS = 3
PATIENCE_S = 30
"""Until a test that waits for another thread gives up."""

BACKUP, LOAD = TransferKind.BACKUP, TransferKind.LOAD


class GatedCopier:
    """Copies when its gate is open. `entered`: set when a copy has begun. `broken`: numbers of jobs that raise."""

    def __init__(self, *broken: int) -> None:
        self.layers = LAYERS
        self.gates = {kind: Event() for kind in TransferKind}
        self.entered = {kind: Event() for kind in TransferKind}
        self.copied: list[int] = []
        self._broken = broken

    def copy(self, job: CopyJob) -> None:
        """Copy a job once its gate is open."""
        self.entered[job.kind].set()
        assert self.gates[job.kind].wait(PATIENCE_S), "the gate was never opened"
        if job.number in self._broken:
            raise OSError(f"memory of job {job.number} is broken")
        self.copied.append(job.number)

    def copy_layer(self, job: CopyJob, layer: int) -> None:
        """Not asked for."""
        raise NotImplementedError

    queue_layer = copy_layer
    queue = copy


def job(number: int, kind: TransferKind, parts: int = 2) -> CopyJob:
    return CopyJob(number, kind, tuple([{} for _ in range(parts)]))


def no_pause() -> None:
    """Go on."""


@pytest.fixture
def copier() -> GatedCopier:
    """Its gates are closed, and its second job is broken."""
    return GatedCopier(2)


@pytest.fixture
def executor(copier: GatedCopier) -> Iterator[ThreadExecutor]:
    """Closed at the end, with its gates open."""
    executor = ThreadExecutor(copier, no_pause)
    yield executor
    open_gates(copier)
    executor.close()


def open_gates(copier: GatedCopier) -> None:
    for gate in copier.gates.values():
        gate.set()


def test_progress_follows_the_bytes(copier: GatedCopier, executor: ThreadExecutor) -> None:
    executor.submit(job(1, BACKUP))
    assert copier.entered[BACKUP].wait(PATIENCE_S), "the worker takes the job"
    assert executor.progress(1) == Progress(0, False, 0), "FLOW-2: nothing has arrived while the copy runs"
    copier.gates[BACKUP].set()
    executor.wait(1)
    assert copier.copied == [1], "FLOW-2: the bytes are there before the job has ended"
    assert executor.progress(1) == Progress(LAYERS, True, 2), "all layers and parts have arrived"


@pytest.mark.parametrize("wait", ["wait", "wait_layer"])
def test_who_waits_is_woken_by_the_end(copier: GatedCopier, executor: ThreadExecutor, wait: str) -> None:
    seen: list[bool] = []

    def reader() -> None:
        executor.wait(1) if wait == "wait" else executor.wait_layer(1, LAYERS - 1)
        seen.append(1 in copier.copied)

    executor.submit(job(1, LOAD))
    thread = Thread(target=reader)
    thread.start()
    assert copier.entered[LOAD].wait(PATIENCE_S), "the worker takes the job"
    assert not seen, "HOST-6: the reader waits while the copy runs"
    copier.gates[LOAD].set()
    thread.join(PATIENCE_S)
    assert seen == [True], f"HOST-6: the reader goes on once the bytes are there, got {seen}"


def test_jobs_of_a_direction_run_in_order(copier: GatedCopier, executor: ThreadExecutor) -> None:
    open_gates(copier)
    for number in (1, 3, 4):
        executor.submit(job(number, BACKUP))
    executor.wait(4)
    assert copier.copied == [1, 3, 4], f"in the order of their submission, got {copier.copied}"
    assert executor.progress(1).has_ended, "the first ended before"


def test_directions_do_not_wait_for_each_other(copier: GatedCopier, executor: ThreadExecutor) -> None:
    executor.submit(job(1, BACKUP))
    executor.submit(job(3, LOAD))
    copier.gates[LOAD].set()
    executor.wait(3)
    assert not executor.progress(1).has_ended, "the backup is behind a closed gate"


def test_a_copy_that_raises_fails_its_job_alone_and_is_logged_once(
    copier: GatedCopier, executor: ThreadExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    open_gates(copier)
    with caplog.at_level(logging.ERROR):
        for number in (1, 2, 3):
            executor.submit(job(number, LOAD))
        executor.wait(3)
    assert executor.progress(2) == Progress(0, True, 0), "FLOW-3: nothing of a failed job has arrived"
    assert executor.progress(3).parts_done == 2, "FLOW-4: the worker goes on"
    executor.wait_layer(2, 0)
    logged = [(record.getMessage(), str(record.exc_info and record.exc_info[1])) for record in caplog.records]
    assert logged == [("load job 2 of 2 parts was not copied", "memory of job 2 is broken")], f"once: {logged}"


def test_a_pause_comes_before_each_job() -> None:
    copier, pauses = GatedCopier(), list[int]()
    open_gates(copier)
    executor = ThreadExecutor(copier, lambda: pauses.append(len(copier.copied)))
    for number in (1, 2, 3):
        executor.submit(job(number, LOAD))
    executor.wait(3)
    executor.close()
    assert pauses == [0, 1, 2], f"a pause before the first, the second and the third job, got {pauses}"


def test_the_end_finishes_what_runs_and_drops_what_waits(copier: GatedCopier, executor: ThreadExecutor) -> None:
    executor.submit(job(1, BACKUP))
    executor.submit(job(3, BACKUP))
    assert copier.entered[BACKUP].wait(PATIENCE_S), "the worker takes the first job"
    closing = Thread(target=executor.close)
    closing.start()
    while executor.is_open:
        assert closing.is_alive(), "the executor is closed by now"
    copier.gates[BACKUP].set()
    closing.join(PATIENCE_S)
    assert copier.copied == [1], "what is being copied is finished, what waits is not begun"
    assert executor.progress(1).parts_done == 2, "the first is whole"
    assert executor.progress(3) == Progress(0, True, 0), "FLOW-4: the second has ended too"
    with pytest.raises(RuntimeError, match="job 4 was submitted to a closed executor"):
        executor.submit(job(4, LOAD))
