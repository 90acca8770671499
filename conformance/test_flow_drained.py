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
from .scenario import (
    TOMBSTONE,
    admit,
    best_match,
    evict_all,
    evict_host,
    evict_inner,
    find,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    put,
    put_on_both,
    put_on_host,
)
from .transfers import STAGES, Stage, pending_transfer, queue_load
from .tree_view import free_device_slots, free_host_slots

WHOLE, BRANCH = (1, 2, 3), (1, 2, 8)


# FLOW-7: each backup, load, request and reset leaves nothing, whether it succeeds or fails.


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


@clause("FLOW-7", write_policies=[WritePolicy.WRITE_THROUGH])
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
    for one in driver.pending(*TransferKind):
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
    for one in driver.pending(*TransferKind):
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


# FLOW-7: sequences of operations leave nothing.


def loaded_and_claimed(driver: Driver) -> None:
    """A load is claimed."""
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    driver.drain()
    driver.claim(load.ticket)


def loaded_twice(driver: Driver) -> None:
    """Two loads share pages; one is abandoned at once, the other when it has ended."""
    put_on_host(driver, WHOLE[:2], WHOLE)
    loads = [queue_load(driver, WHOLE[:2]), queue_load(driver, WHOLE)]
    driver.abandon(loads[0].ticket)
    driver.drain()
    driver.abandon(loads[1].ticket)


def computed_meanwhile(driver: Driver) -> None:
    """A prompt is computed while it is loaded."""
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    insert_fresh(driver, [*WHOLE, 4])
    driver.drain()
    driver.claim(load.ticket)


def locked_and_split(driver: Driver) -> None:
    """A node is locked on both tiers, and split."""
    put_on_both(driver, WHOLE)
    receipts = lock(driver, WHOLE), driver.lock_host(best_match(driver, WHOLE))
    put(driver, [*WHOLE[:1], 9])
    evict_all(driver)
    evict_host(driver)
    driver.unlock_host(receipts[1])
    driver.unlock(receipts[0])


def pressed(driver: Driver) -> None:
    """More is inserted than either tier can hold."""
    for number in range(12):
        put(driver, [number, 50, 51, 52])
        driver.step()


def round_and_round(driver: Driver) -> None:
    """Prompts are evicted and loaded repeatedly, in reused slots of both tiers."""
    for number in range(8):
        put(driver, [number, 50, 51])
        driver.step()
        evict_all(driver)
        for old in (number, max(0, number - 2)):
            driver.load(key_of(driver, [old, 50, 51]))


def lost_in_part(driver: Driver) -> None:
    """Each component of an inner node is evicted from each tier, and loaded again."""
    for component in driver.config.components:
        put_on_both(driver, TOMBSTONE, longer_prompt(driver))
        evict_inner(driver, component)
        evict_host(driver, component)
        driver.load(key_of(driver, TOMBSTONE))


SEQUENCES = (
    loaded_and_claimed,
    loaded_twice,
    computed_meanwhile,
    locked_and_split,
    pressed,
    round_and_round,
    lost_in_part,
)


@clause("FLOW-7", "POOL-1", needs=[Capability.SIZES], page_sizes=[16], write_policies=WritePolicy)
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence.__name__)
def test_a_sequence_of_operations_leaves_nothing_held(driver: Driver, sequence: Callable[[Driver], None]) -> None:
    sequence(driver)
    require_all_evictable(driver, sequence.__name__)


@clause("FLOW-7", "FLOW-3", needs=[Capability.SIZES], page_sizes=[16])
@pytest.mark.parametrize("kind", list(TransferKind), ids=lambda kind: kind.value)
def test_failed_transfers_leave_nothing_held(driver: Driver, kind: TransferKind) -> None:
    if kind is TransferKind.LOAD:
        put_on_host(driver, WHOLE)
        load = queue_load(driver, WHOLE)
    for pages in ([8], [8, 9], [8, 9, 10]):
        put(driver, pages)
        put(driver, pages)
    driver.step()
    for one in driver.pending(*TransferKind):
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    if kind is TransferKind.LOAD:
        driver.claim(load.ticket)
    require_idle(driver, f"every {kind.value} failed")
    require_all_evictable(driver, f"every {kind.value} failed")


@clause("FLOW-7", "REQ-2", needs=[Capability.SIZES, Capability.REQUESTS], page_sizes=[16])
@STAGES
def test_a_request_aborted_while_its_first_pages_are_loaded_leaves_nothing_held(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    admission = driver.admit(key_of(driver, [*WHOLE, 4]))
    assert admission is not None, "REQ-5: a request of four pages fits"
    assert admission.loading, f"HOST-4: three of its pages are on the host, got {admission}"
    stage(driver, TransferKind.LOAD)
    driver.abort(admission.request)
    require_all_evictable(driver, f"aborted when the load was {stage.__name__}")


@clause("FLOW-7", "FLOW-3", "REQ-2", needs=[Capability.SIZES, Capability.REQUESTS], page_sizes=[16])
@pytest.mark.parametrize("end", ["abort", "resume and finish"])
def test_a_request_whose_load_failed_leaves_nothing_held(driver: Driver, end: str) -> None:
    put_on_host(driver, WHOLE)
    admission = driver.admit(key_of(driver, [*WHOLE, 4]))
    assert admission is not None, "REQ-5: a request of four pages fits"
    driver.step()
    for one in driver.pending(*TransferKind):
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    if end == "abort":
        driver.abort(admission.request)
    else:
        assert driver.resume(admission.request) is not None, "FLOW-4: the load has ended, and the request waits still"
        driver.finish(admission.request)
    require_all_evictable(driver, f"a load failed, and the request ended by {end}")
