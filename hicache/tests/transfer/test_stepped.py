"""StepExecutor: a job moves as far as it is told, fails where it is told, and moves alone while somebody waits."""

from __future__ import annotations

import numpy as np
import pytest

from hicache.tests.pools.two_tiers import BACKED_UP, FULL, LOADED, TwoTiers, contents, job_of, moved, two_tier_config
from hicache.transfer.executors import StepExecutor
from hicache.transfer.job import Progress
from hicache.types import Pool, TransferKind

LAYERS = 6
BACKUP = job_of(TransferKind.BACKUP, BACKED_UP, 1)
LOAD = job_of(TransferKind.LOAD, LOADED, 2)


@pytest.fixture
def tiers() -> TwoTiers:
    """Pools whose stack has six layers."""
    return TwoTiers(two_tier_config())


@pytest.fixture
def executor(tiers: TwoTiers) -> StepExecutor:
    """Two jobs, of which none has moved."""
    executor = StepExecutor(tiers.copier())
    executor.submit(BACKUP)
    executor.submit(LOAD)
    return executor


def test_nothing_moves_by_itself(tiers: TwoTiers) -> None:
    before = {pool: contents(tiers.host, pool) for pool in Pool}
    executor = StepExecutor(tiers.copier())
    executor.submit(BACKUP)
    assert executor.progress(1) == Progress(0, False, 0), "a job that was submitted has not moved"
    for pool, own in before.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"{pool.value} has changed"


def test_jobs_are_listed_until_they_end_the_oldest_first(executor: StepExecutor) -> None:
    assert executor.pending() == [1, 2], "both are pending"
    assert executor.job(2) is LOAD, "a job is found by its number"
    executor.complete(1)
    assert executor.pending() == [2], "an ended job is pending no more"
    executor.fail(2, parts_done=1)
    assert executor.pending() == [], "nor is a failed one"


def test_layers_arrive_one_by_one_in_the_order_of_the_stack(tiers: TwoTiers, executor: StepExecutor) -> None:
    expected = moved(BACKUP, tiers, len(BACKED_UP))
    before = contents(tiers.host, Pool.SWA)
    for layer in range(LAYERS):
        assert executor.progress(1) == Progress(layer, False, 0), f"{layer} layers have arrived"
        executor.advance(1)
        own = before.copy()
        arrived = [place for place, order in enumerate((1, 4, 5)) if order <= layer]
        own[:, arrived] = expected[Pool.SWA][:, arrived]
        assert np.array_equal(contents(tiers.host, Pool.SWA), own), f"HOST-6: {arrived} of SWA after {layer + 1} layers"
    assert executor.progress(1) == Progress(LAYERS, True, len(BACKED_UP)), "after the last layer the job has ended"


def test_a_job_that_has_begun_is_completed_from_there(tiers: TwoTiers, executor: StepExecutor) -> None:
    expected = moved(BACKUP, tiers, len(BACKED_UP))
    executor.advance(1)
    executor.complete(1)
    assert executor.progress(1) == Progress(LAYERS, True, len(BACKED_UP)), "the job has ended"
    for pool, own in expected.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"{pool.value} is there"


@pytest.mark.parametrize("parts_done", range(len(BACKED_UP)))
def test_a_job_fails_with_its_first_parts_whole_and_nothing_else(
    tiers: TwoTiers, executor: StepExecutor, parts_done: int
) -> None:
    expected = moved(BACKUP, tiers, parts_done)
    executor.fail(1, parts_done)
    assert executor.progress(1) == Progress(0, True, parts_done), f"FLOW-3: {parts_done} parts are whole"
    for pool, own in expected.items():
        assert np.array_equal(contents(tiers.host, pool), own), f"FLOW-3: {pool.value} after {parts_done} parts"


@pytest.mark.parametrize("parts_done", [-1, len(BACKED_UP)])
def test_a_job_cannot_fail_after_all_its_parts(executor: StepExecutor, parts_done: int) -> None:
    with pytest.raises(ValueError, match="job 1 has 3 parts"):
        executor.fail(1, parts_done)
    assert executor.pending() == [1, 2], "it goes on"


def test_an_ended_job_moves_no_more(executor: StepExecutor) -> None:
    executor.complete(1)
    for move in (executor.advance, executor.complete, lambda number: executor.fail(number, 0)):
        with pytest.raises(ValueError, match="job 1 has ended"):
            move(1)


def test_who_waits_for_a_job_moves_it(executor: StepExecutor) -> None:
    executor.wait(2)
    assert executor.progress(2) == Progress(LAYERS, True, len(LOADED)), "a job that is waited for ends"
    executor.wait(2)
    assert executor.pending() == [1], "the other has not moved"


def test_who_waits_for_a_layer_moves_the_job_so_far(executor: StepExecutor) -> None:
    executor.wait_layer(2, 3)
    assert executor.progress(2) == Progress(4, False, 0), "HOST-6: layers 0 to 3 are there"
    executor.wait_layer(2, 1)
    assert executor.progress(2).layers == 4, "an earlier one is there already"
    executor.fail(2, parts_done=0)
    executor.wait_layer(2, 5)
    assert executor.progress(2) == Progress(4, True, 0), "nobody waits for a job that has ended"


def test_waits_fail_as_often_as_told(tiers: TwoTiers, executor: StepExecutor) -> None:
    before = contents(tiers.host, Pool.KV)
    executor.complete(2)
    executor.waits_to_fail = 1
    executor.wait(2)
    executor.wait(1)
    assert executor.progress(1) == Progress(0, True, 0), "a wait for a job that has ended is none; the next one fails"
    assert np.array_equal(contents(tiers.host, Pool.KV), before), "FLOW-3: a failed job has copied nothing"
    executor.submit(job_of(TransferKind.BACKUP, [{FULL: ([1], [1])}], 3))
    executor.wait(3)
    assert executor.progress(3).parts_done == 1, "the wait after that succeeds"


def test_what_is_pending_at_the_end_fails(executor: StepExecutor) -> None:
    executor.complete(1)
    executor.close()
    assert executor.pending() == [], "nothing is pending after the end"
    assert executor.progress(1).parts_done == len(BACKED_UP), "what had ended before is whole"
    assert executor.progress(2) == Progress(0, True, 0), "the rest has failed"
