"""HybridCacheController: what is merged, the order in which transfers end, and that each transfer ends once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from hicache.tests.transfer.manual_executor import ManualExecutor
from hicache.transfer.job import CopyJob, Move
from hicache.transfer.queue import HybridCacheController
from hicache.types import TransferKind, TransferPhase

BACKUP, LOAD = TransferKind.BACKUP, TransferKind.LOAD

Executors = Mapping[TransferKind, ManualExecutor[CopyJob]]


@dataclass(slots=True, eq=False)
class PageTransfer:
    """A transfer of one page."""

    kind: TransferKind
    moves: Mapping[str, Move]
    phase: TransferPhase


Controller = HybridCacheController[PageTransfer]


@pytest.fixture
def executors() -> Executors:
    """One for each direction. They run nothing by themselves."""
    return {kind: ManualExecutor() for kind in TransferKind}


@pytest.fixture
def controller(executors: Executors) -> Controller:
    """A controller over those executors."""
    return HybridCacheController(executors.__getitem__)


def enqueue(controller: Controller, kind: TransferKind, page: int) -> PageTransfer:
    pages = np.array([page], dtype=np.int64)
    transfer = PageTransfer(kind, {"full": Move(pages, pages)}, TransferPhase.QUEUED)
    controller.enqueue(transfer)
    return transfer


def taken(controller: Controller, kind: TransferKind) -> list[PageTransfer]:
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
    aborted = controller.abort()
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
    assert controller.layers_done(second) == 0, "HOST-6: a transfer in the queue has no layer yet, whatever runs"
    controller.wait_layer(second, 0)
    assert not executor.waited, f"a transfer in the queue has no job to wait for, got {executor.waited}"
    controller.wait_layer(first, 0)
    assert executor.waited == [1], f"the wait is for the transfer's own job, got {executor.waited}"
