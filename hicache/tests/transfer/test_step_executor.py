"""StepExecutor: a job does the steps that a test asks for, fails where a test says, and moves on in a wait."""

from __future__ import annotations

import numpy as np
import pytest

from hicache.tests.pools.two_tiers import BACKED_UP, FULL, LOADED, TwoTiers, contents, job_of, moved, two_tier_config
from hicache.tests.transfer import scripted_storage
from hicache.tests.transfer.scripted_storage import ScriptedStorage, query_of, worker_of
from hicache.transfer.executors import FailingWaits, StepExecutor
from hicache.transfer.job import NOT_STARTED, CopyJob, CopyWorker, Progress, StorageJob
from hicache.types import Pool, StorageKind, TransferKind

LAYERS = 6
BACKUP = job_of(TransferKind.BACKUP, BACKED_UP, 1)
LOAD = job_of(TransferKind.LOAD, LOADED, 2)
FAILED = Progress(0, (), has_ended=True)


def whole(parts: int) -> Progress:
    """The progress of a copy that has ended with all its parts."""
    return Progress(LAYERS, (1,) * parts, has_ended=True)


@pytest.fixture
def tiers() -> TwoTiers:
    """Pools whose stack has six layers."""
    return TwoTiers(two_tier_config())


@pytest.fixture
def failing() -> FailingWaits:
    """No wait fails until a test says so."""
    return FailingWaits()


@pytest.fixture
def executor(tiers: TwoTiers, failing: FailingWaits) -> StepExecutor[CopyJob]:
    """Two copies, neither of which has moved."""
    executor = StepExecutor(CopyWorker(tiers.copier()), failing)
    executor.submit(BACKUP)
    executor.submit(LOAD)
    return executor


def storage_of(*answers: int) -> tuple[ScriptedStorage, StepExecutor[StorageJob]]:
    """A backend that gives these answers, and an executor that calls it."""
    backend = ScriptedStorage(answers)
    backend.gate.set()
    return backend, StepExecutor(worker_of(backend))


# Copies.


def test_nothing_moves_by_itself(tiers: TwoTiers) -> None:
    before = {pool: contents(tiers.host, pool) for pool in Pool}
    executor = StepExecutor(CopyWorker(tiers.copier()))
    executor.submit(BACKUP)
    assert executor.progress(1) == NOT_STARTED, "a job that was submitted has not moved"
    for pool, own in before.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"{pool.value} has changed"


def test_jobs_are_listed_until_they_end_the_oldest_first(executor: StepExecutor[CopyJob]) -> None:
    assert executor.pending() == [BACKUP, LOAD], "both are pending"
    executor.complete(1)
    assert executor.pending() == [LOAD], "a job that has ended is not pending"
    executor.fail(2, parts_done=1)
    assert executor.pending() == [], "a job that has failed is not pending"


def test_layers_arrive_one_by_one_in_the_order_of_the_stack(tiers: TwoTiers, executor: StepExecutor[CopyJob]) -> None:
    expected = moved(BACKUP, tiers, len(BACKED_UP))
    before = contents(tiers.host, Pool.SWA)
    for layer in range(LAYERS):
        assert executor.progress(1) == Progress(layer, (), has_ended=False), f"{layer} layers have arrived"
        executor.advance(1)
        own = before.copy()
        arrived = [place for place, order in enumerate((1, 4, 5)) if order <= layer]
        own[:, arrived] = expected[Pool.SWA][:, arrived]
        assert np.array_equal(contents(tiers.host, Pool.SWA), own), f"HOST-6: {arrived} of SWA after {layer + 1} layers"
    assert executor.progress(1) == whole(len(BACKED_UP)), "the job ends with the last layer"


def test_a_job_that_has_begun_is_completed_from_there(tiers: TwoTiers, executor: StepExecutor[CopyJob]) -> None:
    expected = moved(BACKUP, tiers, len(BACKED_UP))
    executor.advance(1)
    executor.complete(1)
    assert executor.progress(1) == whole(len(BACKED_UP)), "the job has ended"
    for pool, own in expected.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"the bytes of {pool} differ"


@pytest.mark.parametrize("parts_done", range(len(BACKED_UP)))
def test_a_job_fails_with_its_first_parts_whole_and_nothing_else(
    tiers: TwoTiers, executor: StepExecutor[CopyJob], parts_done: int
) -> None:
    expected = moved(BACKUP, tiers, parts_done)
    executor.fail(1, parts_done)
    found = executor.progress(1)
    assert found == Progress(0, (1,) * parts_done, has_ended=True), f"FLOW-3: {parts_done} parts are whole, got {found}"
    for pool, own in expected.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"FLOW-3: {pool} after {parts_done} parts"


@pytest.mark.parametrize("parts_done", [-1, len(BACKED_UP)])
def test_a_job_cannot_fail_after_all_its_parts(executor: StepExecutor[CopyJob], parts_done: int) -> None:
    with pytest.raises(ValueError, match="job 1 has 3 parts"):
        executor.fail(1, parts_done)
    assert executor.pending() == [BACKUP, LOAD], "the job goes on"


def test_an_ended_job_moves_no_more(executor: StepExecutor[CopyJob]) -> None:
    executor.complete(1)
    for move in (executor.advance, executor.complete, lambda number: executor.fail(number, 0)):
        with pytest.raises(ValueError, match="job 1 has ended"):
            move(1)


def test_who_waits_for_a_job_moves_it(executor: StepExecutor[CopyJob]) -> None:
    executor.wait(2)
    assert executor.progress(2) == whole(len(LOADED)), "a wait moves a job to its end"
    executor.wait(2)
    assert executor.pending() == [BACKUP], "the other job has not moved"


def test_who_waits_for_a_layer_moves_the_job_so_far(executor: StepExecutor[CopyJob]) -> None:
    executor.wait_layer(2, 3)
    assert executor.progress(2) == Progress(4, (), has_ended=False), "HOST-6: layers 0 to 3 have arrived"
    executor.wait_layer(2, 1)
    assert executor.progress(2).steps == 4, "an earlier layer has arrived already"
    executor.fail(2, parts_done=0)
    executor.wait_layer(2, 5)
    assert executor.progress(2) == Progress(4, (), has_ended=True), "a wait for a job that has ended moves nothing"


def test_waits_fail_as_often_as_told(tiers: TwoTiers, executor: StepExecutor[CopyJob], failing: FailingWaits) -> None:
    before = contents(tiers.host, Pool.KV)
    executor.complete(2)
    failing.left = 1
    executor.wait(2)
    assert failing.left == 1, "a wait for a job that has ended does not count"
    executor.wait(1)
    assert executor.progress(1) == FAILED, "the wait for the other job makes it fail"
    assert np.array_equal(contents(tiers.host, Pool.KV), before), "FLOW-3: a failed job has copied nothing"
    executor.submit(job_of(TransferKind.BACKUP, [{FULL: ([1], [1])}], 3))
    executor.wait(3)
    assert executor.progress(3) == whole(1), "the wait after that succeeds"


def test_executors_share_the_waits_that_fail(
    tiers: TwoTiers, executor: StepExecutor[CopyJob], failing: FailingWaits
) -> None:
    other = StepExecutor(CopyWorker(tiers.copier()), failing)
    other.submit(LOAD)
    failing.left = 1
    other.wait(2)
    executor.wait(1)
    assert other.progress(2) == FAILED, "the first wait fails"
    assert executor.progress(1) == whole(len(BACKED_UP)), "the wait in the other executor is the second one"


def test_a_stopped_copy_still_does_the_layer_that_runs(executor: StepExecutor[CopyJob]) -> None:
    executor.stop(1)
    assert not executor.progress(1).has_ended, "FLOW-1: the running layer still writes to its pages"
    executor.wait(1)
    assert executor.progress(1) == Progress(1, (), has_ended=True), "the copy ends after that layer"
    assert executor.pending() == [LOAD], "the other copy goes on"


def test_what_is_pending_at_the_end_fails(executor: StepExecutor[CopyJob]) -> None:
    executor.complete(1)
    executor.close()
    assert executor.pending() == [], "nothing is pending in a closed executor"
    assert executor.progress(1) == whole(len(BACKED_UP)), "what had ended before is whole"
    assert executor.progress(2) == FAILED, "the other job has failed"


# Storage jobs.


def test_nothing_is_asked_by_itself() -> None:
    backend, storage = storage_of(2)
    job = scripted_storage.job_of(1, StorageKind.PREFETCH, 2)
    storage.submit(job)
    assert backend.calls == [], "a job waits until it is advanced"
    assert storage.progress(1) == NOT_STARTED, "a job that was submitted has not moved"
    assert storage.pending() == [job], "it is pending"


def test_a_job_goes_batch_by_batch_to_its_end() -> None:
    backend, storage = storage_of(2, 3)
    storage.submit(scripted_storage.job_of(1, StorageKind.STORE, 2, 3))
    storage.advance(1)
    assert storage.progress(1) == Progress(1, (2,), has_ended=False), "one of two batches"
    storage.advance(1)
    assert storage.progress(1) == Progress(2, (2, 3), has_ended=True), "both batches"
    assert backend.calls == [(1, 0), (1, 1)], f"in order, got {backend.calls}"
    with pytest.raises(ValueError, match="has ended"):
        storage.advance(1)


def test_a_job_ends_with_the_first_batch_that_is_not_whole() -> None:
    backend, storage = storage_of(1)
    storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2, 3))
    storage.wait(1)
    assert storage.progress(1) == Progress(1, (1,), has_ended=True), "FETCH-4: nothing is read past a gap"
    assert backend.calls == [(1, 0)], f"the second batch is not read, got {backend.calls}"


def test_any_answer_to_a_query_is_whole() -> None:
    _, storage = storage_of(0)
    query = query_of(1)
    storage.submit(query)
    storage.wait(1)
    assert storage.progress(1) == Progress(1, (0,), has_ended=True), "0 pages is an answer"
    assert query.is_whole(0, 0), "a query of 2 pages is done when the answer is 0"


def test_what_is_stopped_still_does_the_batch_that_runs() -> None:
    backend, storage = storage_of(2, 3)
    storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2, 3))
    storage.stop(1)
    assert not storage.progress(1).has_ended, "FLOW-1: the running batch still writes to its pages"
    storage.advance(1)
    assert storage.progress(1) == Progress(1, (2,), has_ended=True), "the job ends after that batch"
    assert backend.calls == [(1, 0)], f"the second batch is not read, got {backend.calls}"


def test_a_storage_job_fails_after_its_first_batches() -> None:
    backend, storage = storage_of(2, 3)
    storage.submit(scripted_storage.job_of(1, StorageKind.STORE, 2, 3))
    storage.fail(1, parts_done=1)
    progress = storage.progress(1)
    assert progress.has_ended, f"FLOW-3: the job has ended, got {progress}"
    assert progress.answers == (2,), f"FLOW-3: the first batch is whole, got {progress}"
    assert backend.calls == [(1, 0)], f"the second batch is not written, got {backend.calls}"


def test_a_closed_executor_asks_nothing_more() -> None:
    backend, storage = storage_of(2)
    storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2))
    storage.close()
    assert storage.progress(1) == FAILED, "the job ended as it was"
    assert backend.calls == [], f"the backend is not called, got {backend.calls}"


def test_a_forgotten_job_is_unknown() -> None:
    _, storage = storage_of(2)
    storage.submit(scripted_storage.job_of(1, StorageKind.PREFETCH, 2))
    storage.wait(1)
    storage.forget(1)
    with pytest.raises(KeyError):
        storage.progress(1)
