"""FLOW-7: after a drain nothing is left of backups, loads, requests and resets."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .checks import require_all_evictable, require_all_free, require_idle
from .scenario import admit, evict_all, find, insert_fresh, key_of, put, put_on_host
from .transfers import STAGES, Stage, pending_transfer, queue_load
from .tree_view import free_device_slots, free_host_slots

WHOLE, BRANCH = (1, 2, 3), (1, 2, 8)
FORWARD = [WritePolicy.WRITE_THROUGH]

Outcome = Callable[[Driver, TransferKind], None]


def succeeds(driver: Driver, kind: TransferKind) -> None:
    """The transfer completes."""
    driver.step()
    driver.complete(pending_transfer(driver, kind).ticket)
    driver.step()


def fails(driver: Driver, kind: TransferKind) -> None:
    """The transfer fails in its first part."""
    driver.step()
    driver.fail(pending_transfer(driver, kind).ticket, parts_done=0)
    driver.step()


OUTCOMES = pytest.mark.parametrize("outcome", [succeeds, fails], ids=lambda outcome: outcome.__name__)
ENDS = pytest.mark.parametrize("end", [Driver.claim, Driver.abandon], ids=["claimed", "abandoned"])


@clause("FLOW-7", write_policies=FORWARD)
@OUTCOMES
def test_a_backup_leaves_nothing_held(driver: Driver, outcome: Outcome) -> None:
    put(driver, WHOLE)
    put(driver, BRANCH)
    outcome(driver, TransferKind.BACKUP)
    require_idle(driver, f"a backup {outcome.__name__}")
    require_all_evictable(driver, f"a backup {outcome.__name__}")


@clause("FLOW-7", "FLOW-4")
@OUTCOMES
@ENDS
def test_a_claimed_or_abandoned_load_leaves_nothing_held(
    driver: Driver, outcome: Outcome, end: Callable[..., object]
) -> None:
    put_on_host(driver, WHOLE, BRANCH)
    load = queue_load(driver, WHOLE)
    outcome(driver, TransferKind.LOAD)
    end(driver, load.ticket)
    require_idle(driver, f"a load {outcome.__name__}")
    require_all_evictable(driver, f"a load {outcome.__name__}")


@clause("FLOW-7", "FLOW-4")
@OUTCOMES
@pytest.mark.parametrize("is_begun", [False, True], ids=["queued", "running"])
def test_a_load_abandoned_before_its_end_leaves_nothing_held(driver: Driver, outcome: Outcome, is_begun: bool) -> None:
    put_on_host(driver, WHOLE, BRANCH)
    load = queue_load(driver, WHOLE)
    if is_begun:
        driver.step()
    driver.abandon(load.ticket)
    outcome(driver, TransferKind.LOAD)
    require_idle(driver, f"an abandoned load {outcome.__name__}")
    require_all_evictable(driver, f"an abandoned load {outcome.__name__}")


@clause("FLOW-7", "FLOW-5", page_sizes=[16])
@OUTCOMES
@STAGES
@ENDS
def test_a_load_whose_nodes_were_split_and_recomputed_leaves_nothing_held(
    driver: Driver, stage: Stage, outcome: Outcome, end: Callable[..., object]
) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    driver.match(key_of(driver, BRANCH), chunked=True)
    insert_fresh(driver, BRANCH)
    driver.step()
    for one in driver.pending():
        if outcome is fails:
            driver.fail(one.ticket, parts_done=0)
    driver.drain()
    end(driver, load.ticket)
    require_idle(driver, f"a load {outcome.__name__} whose node was cut")
    require_all_evictable(driver, f"a load {outcome.__name__} whose node was cut")


@clause("FLOW-7", "REQ-2", needs=[Capability.REQUESTS])
@STAGES
def test_a_request_aborted_while_it_waits_leaves_nothing_held(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    waiting = admit(driver, WHOLE, tail=1)
    assert waiting.loading, f"FLOW-10: {WHOLE} is on the host, got {waiting}"
    stage(driver, TransferKind.LOAD)
    driver.abort(waiting.request)
    require_all_evictable(driver, "a request that waited was aborted")


@clause("FLOW-7", "REQ-2", needs=[Capability.REQUESTS])
@OUTCOMES
@pytest.mark.parametrize("is_resumed", [False, True], ids=["waiting", "resumed"])
@pytest.mark.parametrize("is_aborted", [False, True], ids=["finished", "aborted"])
def test_a_request_whose_load_has_ended_leaves_nothing_held(
    driver: Driver, outcome: Outcome, is_resumed: bool, is_aborted: bool
) -> None:
    put_on_host(driver, WHOLE)
    waiting = admit(driver, WHOLE, tail=1)
    outcome(driver, TransferKind.LOAD)
    if is_resumed or not is_aborted:
        assert driver.resume(waiting.request) is not None, (
            f"FLOW-4: its load {outcome.__name__}: expected the request to resume, got None"
        )
    end = driver.abort if is_aborted else driver.finish
    end(waiting.request)
    require_all_evictable(driver, f"the load of a request {outcome.__name__}")


@clause("FLOW-7", "EVICT-9")
@STAGES
def test_a_reset_during_a_load_leaves_nothing_held(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE, BRANCH)
    queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    put(driver, [5])
    driver.reset()
    require_idle(driver, "a reset")
    require_all_free(driver, "a reset")


@clause("FLOW-7", "EVICT-9")
def test_a_reset_frees_slots_that_are_kept_for_readers(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    queue_load(driver, WHOLE)
    insert_fresh(driver, WHOLE)
    driver.drain()
    driver.reset()
    require_idle(driver, "a reset")
    require_all_free(driver, "a reset")


@clause("FLOW-7", page_sizes=[16])
def test_repeated_loads_take_no_slots(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    before = free_device_slots(driver), free_host_slots(driver)
    for number in range(6):
        load = queue_load(driver, WHOLE)
        outcome = fails if number % 2 else succeeds
        outcome(driver, TransferKind.LOAD)
        driver.claim(load.ticket)
        evict_all(driver)
        after = free_device_slots(driver), free_host_slots(driver)
        assert after == before, f"FLOW-7: {number + 1} loads: expected {before} free slots, got {after}"


@clause("FLOW-7", write_policies=WritePolicy)
@pytest.mark.parametrize("seed", range(3))
def test_many_operations_at_once_leave_nothing_held(driver: Driver, seed: int) -> None:
    rng = Random(seed)
    prompts = [WHOLE, BRANCH, (5, 6), (5, 7)]
    put_on_host(driver, *prompts)
    receipts, host_receipts = [], []
    loads = [queue_load(driver, pages) for pages in rng.sample(prompts, 3)]
    driver.step()
    for pages in rng.sample(prompts, 2):
        found = driver.match(key_of(driver, pages), chunked=True)
        host_receipts.append(driver.lock_host(found.best_match))
        insert_fresh(driver, pages)
        receipts.append(driver.lock(find(driver, pages)))
    driver.step()
    for one in driver.pending():
        if rng.random() < 1 / 2:
            driver.fail(one.ticket, parts_done=0)
    driver.abandon(loads.pop().ticket)
    driver.drain()
    for load in loads:
        driver.claim(load.ticket)
    for receipt in receipts:
        driver.unlock(receipt)
    for receipt in host_receipts:
        driver.unlock_host(receipt)
    require_idle(driver, f"all was released, seed {seed}")
    require_all_evictable(driver, f"all was released, seed {seed}")
