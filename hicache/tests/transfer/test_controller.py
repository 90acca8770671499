"""HybridCacheController: what is merged, the order in which it ends, and that each operation ends once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from hicache.transfer.job import CopyJob, Move, Progress
from hicache.transfer.queue import HybridCacheController
from hicache.types import TransferKind, TransferPhase

BACKUP, LOAD = TransferKind.BACKUP, TransferKind.LOAD


@dataclass(slots=True, eq=False)
class Copying:
    """An operation of one page."""

    kind: TransferKind
    moves: Mapping[str, Move]
    phase: TransferPhase


class HandExecutor:
    """Jobs end when the test says so."""

    def __init__(self) -> None:
        self.jobs: dict[int, CopyJob] = {}
        self.ended: dict[int, int] = {}
        self.waited: list[int] = []
        self.forgotten: list[int] = []

    def submit(self, job: CopyJob) -> None:
        self.jobs[job.number] = job

    def progress(self, number: int) -> Progress:
        return Progress(1, number in self.ended, self.ended.get(number, 0))

    def wait(self, number: int) -> None:
        self.waited.append(number)
        self.ended.setdefault(number, len(self.jobs[number].parts))

    def wait_layer(self, number: int, layer: int) -> None:
        self.wait(number)

    def forget(self, number: int) -> None:
        self.forgotten.append(number)

    def close(self) -> None:
        self.jobs.clear()


@pytest.fixture
def executor() -> HandExecutor:
    """Who moves nothing by itself."""
    return HandExecutor()


@pytest.fixture
def controller(executor: HandExecutor) -> HybridCacheController[Copying]:
    """A controller over it."""
    return HybridCacheController[Copying](executor)


def queue(controller: HybridCacheController[Copying], kind: TransferKind, page: int) -> Copying:
    pages = np.array([page], dtype=np.int64)
    operation = Copying(kind, {"full": Move(pages, pages)}, TransferPhase.QUEUED)
    controller.enqueue(operation)
    return operation


def taken(controller: HybridCacheController[Copying], kind: TransferKind) -> list[Copying]:
    """What is taken over on one rank, which needs nobody's agreement."""
    controller.settle(kind, controller.outcomes(kind))
    return list(controller.take_ended(kind))


def test_a_start_merges_what_is_queued_in_one_direction(
    controller: HybridCacheController[Copying], executor: HandExecutor
) -> None:
    backups = [queue(controller, BACKUP, page) for page in (1, 2)]
    load = queue(controller, LOAD, 3)
    controller.start(BACKUP)
    parts = [[move["full"].device.tolist() for move in job.parts] for job in executor.jobs.values()]
    assert parts == [[[1], [2]]], f"one job of two parts in the order of the queue, got {parts}"
    assert [operation.phase for operation in (*backups, load)] == [
        TransferPhase.RUNNING,
        TransferPhase.RUNNING,
        TransferPhase.QUEUED,
    ], "what is queued the other way waits"


def test_a_start_with_nothing_queued_starts_nothing(
    controller: HybridCacheController[Copying], executor: HandExecutor
) -> None:
    controller.start(LOAD)
    assert not executor.jobs, f"an empty queue is no job, got {executor.jobs}"


def test_what_ends_early_waits_for_what_was_queued_before(
    controller: HybridCacheController[Copying], executor: HandExecutor
) -> None:
    operations = []
    for page in (1, 2):
        operations.append(queue(controller, BACKUP, page))
        controller.start(BACKUP)
    executor.ended[2] = 1
    assert not taken(controller, BACKUP), "HOST-3: the second has ended, the first has not"
    executor.ended[1] = 1
    assert taken(controller, BACKUP) == operations, "HOST-3: both, in the order in which they were queued"
    assert not taken(controller, BACKUP), "FLOW-4: each ends once"
    assert executor.forgotten == [1, 2], f"the executor is told, got {executor.forgotten}"


def test_the_directions_do_not_wait_for_each_other(
    controller: HybridCacheController[Copying], executor: HandExecutor
) -> None:
    queue(controller, BACKUP, 1)
    load = queue(controller, LOAD, 2)
    controller.start(BACKUP)
    controller.start(LOAD)
    executor.ended[2] = 1
    assert taken(controller, LOAD) == [load], "a load does not wait for a backup"


def test_what_has_ended_here_waits_for_the_other_ranks(
    controller: HybridCacheController[Copying], executor: HandExecutor
) -> None:
    operations = [queue(controller, BACKUP, page) for page in (1, 2)]
    controller.start(BACKUP)
    executor.ended[1] = 2
    assert controller.outcomes(BACKUP) == [3], "it has ended here, and both parts have come"
    controller.settle(BACKUP, [0])
    assert not list(controller.take_ended(BACKUP)), "RANK-1: another rank is not so far"
    controller.settle(BACKUP, [2])
    assert [operation.phase for operation in controller.take_ended(BACKUP)] == [
        TransferPhase.DONE,
        TransferPhase.FAILED,
    ], f"RANK-1: on another rank the second of {len(operations)} parts failed"


def test_a_job_that_fails_has_done_its_first_parts(
    controller: HybridCacheController[Copying], executor: HandExecutor
) -> None:
    operations = [queue(controller, LOAD, page) for page in (1, 2, 3)]
    controller.start(LOAD)
    executor.ended[1] = 1
    phases = [operation.phase for operation in taken(controller, LOAD)]
    assert phases == [TransferPhase.DONE, TransferPhase.FAILED, TransferPhase.FAILED], f"FLOW-3: got {phases}"
    assert not controller.under_way(), f"all {len(operations)} have ended"


def test_an_abort_ends_everything_once(controller: HybridCacheController[Copying], executor: HandExecutor) -> None:
    running = queue(controller, BACKUP, 1)
    controller.start(BACKUP)
    queued = [queue(controller, BACKUP, 2), queue(controller, LOAD, 3)]
    aborted = controller.abort()
    assert sorted(map(id, aborted)) == sorted(map(id, [running, *queued])), f"EVICT-9: each of them, got {aborted}"
    assert {operation.phase for operation in aborted} == {TransferPhase.ABORTED}, "none of them counts as done"
    assert executor.waited == [1], "FLOW-1: what runs is waited for before its pages are freed"
    assert not controller.under_way(), "nothing is left"
    assert not taken(controller, BACKUP), "EVICT-9: no late completion"


def test_layers_are_those_of_the_operation_s_own_job(
    controller: HybridCacheController[Copying], executor: HandExecutor
) -> None:
    first, second = queue(controller, LOAD, 1), None
    controller.start(LOAD)
    second = queue(controller, LOAD, 2)
    assert controller.layers_done(first) == 1, "its job says so"
    assert controller.layers_done(second) == 0, "HOST-6: what is queued has no layer yet, whatever runs"
    controller.wait_layer(second, 0)
    assert not executor.waited, "nobody waits for a job that was not started"
    controller.wait_layer(first, 0)
    assert executor.waited == [1], f"the job of the operation is waited for, got {executor.waited}"
