"""FLOW-7: after a drain nothing is left of backups, loads, requests and resets."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import TransferKind

from .scenario import TOMBSTONE, Scenario
from .transfer_phases import PHASES, Phase

WHOLE, BRANCH = (1, 2, 3), (1, 2, 8)


# FLOW-7: each backup, load, request and reset leaves nothing, whether it succeeds or fails.


Outcome = Callable[[Scenario, TransferKind], None]


def succeeds(driver: Scenario, kind: TransferKind) -> None:
    """The transfer completes."""
    driver.step()
    driver.complete(driver.pending_transfer(kind).ticket)
    driver.step()


def fails(driver: Scenario, kind: TransferKind) -> None:
    """The transfer fails in its first part."""
    driver.step()
    driver.fail(driver.pending_transfer(kind).ticket, parts_done=0)
    driver.step()


OUTCOMES = pytest.mark.parametrize("outcome", [succeeds, fails], ids=lambda outcome: outcome.__name__)
ENDS = pytest.mark.parametrize("end", [Scenario.claim, Scenario.abandon], ids=["claimed", "abandoned"])


@clause("FLOW-7", write_policies=[WritePolicy.WRITE_THROUGH])
@OUTCOMES
def test_a_backup_leaves_nothing_held(driver: Scenario, outcome: Outcome) -> None:
    driver.put_pages(WHOLE)
    driver.put_pages(BRANCH)
    outcome(driver, TransferKind.BACKUP)
    driver.require_idle(f"a backup {outcome.__name__}")
    driver.require_all_evictable(f"a backup {outcome.__name__}")


@clause("FLOW-7", "FLOW-4")
@OUTCOMES
@ENDS
def test_a_claimed_or_abandoned_load_leaves_nothing_held(
    driver: Scenario, outcome: Outcome, end: Callable[..., object]
) -> None:
    driver.put_on_host(WHOLE, BRANCH)
    load = driver.queue_load(WHOLE)
    outcome(driver, TransferKind.LOAD)
    end(driver, load.ticket)
    driver.require_idle(f"a load {outcome.__name__}")
    driver.require_all_evictable(f"a load {outcome.__name__}")


@clause("FLOW-7", "FLOW-4")
@OUTCOMES
@pytest.mark.parametrize("is_begun", [False, True], ids=["queued", "running"])
def test_a_load_abandoned_before_its_end_leaves_nothing_held(
    driver: Scenario, outcome: Outcome, is_begun: bool
) -> None:
    driver.put_on_host(WHOLE, BRANCH)
    load = driver.queue_load(WHOLE)
    if is_begun:
        driver.step()
    driver.abandon(load.ticket)
    outcome(driver, TransferKind.LOAD)
    driver.require_idle(f"an abandoned load {outcome.__name__}")
    driver.require_all_evictable(f"an abandoned load {outcome.__name__}")


@clause("FLOW-7", "FLOW-5", page_sizes=[16])
@OUTCOMES
@PHASES
@ENDS
def test_a_load_whose_nodes_were_split_and_recomputed_leaves_nothing_held(
    driver: Scenario, phase: Phase, outcome: Outcome, end: Callable[..., object]
) -> None:
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    driver.match(driver.key_of(BRANCH), chunked=True)
    driver.insert_fresh(BRANCH)
    driver.step()
    for one in driver.pending(*TransferKind):
        if outcome is fails:
            driver.fail(one.ticket, parts_done=0)
    driver.drain()
    end(driver, load.ticket)
    driver.require_idle(f"a load {outcome.__name__} whose node was cut")
    driver.require_all_evictable(f"a load {outcome.__name__} whose node was cut")


@clause("FLOW-7", "REQ-2", needs=[Capability.REQUESTS])
@PHASES
def test_a_request_aborted_while_it_waits_leaves_nothing_held(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    waiting = driver.admit_pages(WHOLE, tail=1)
    assert waiting.loading, f"FLOW-10: {WHOLE} is on the host, got {waiting}"
    phase(driver, TransferKind.LOAD)
    driver.abort(waiting.request)
    driver.require_all_evictable("a request that waited was aborted")


@clause("FLOW-7", "REQ-2", needs=[Capability.REQUESTS])
@OUTCOMES
@pytest.mark.parametrize("is_resumed", [False, True], ids=["waiting", "resumed"])
@pytest.mark.parametrize("is_aborted", [False, True], ids=["finished", "aborted"])
def test_a_request_whose_load_has_ended_leaves_nothing_held(
    driver: Scenario, outcome: Outcome, is_resumed: bool, is_aborted: bool
) -> None:
    driver.put_on_host(WHOLE)
    waiting = driver.admit_pages(WHOLE, tail=1)
    outcome(driver, TransferKind.LOAD)
    if is_resumed or not is_aborted:
        assert driver.resume(waiting.request) is not None, (
            f"FLOW-4: its load {outcome.__name__}: expected the request to resume, got None"
        )
    end = driver.abort if is_aborted else driver.finish
    end(waiting.request)
    driver.require_all_evictable(f"the load of a request {outcome.__name__}")


@clause("FLOW-7", "EVICT-9")
@PHASES
def test_a_reset_during_a_load_leaves_nothing_held(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE, BRANCH)
    driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    driver.put_pages([5])
    driver.reset()
    driver.require_idle("a reset")
    driver.require_all_free("a reset")


@clause("FLOW-7", "EVICT-9")
def test_a_reset_frees_slots_that_are_kept_for_readers(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    driver.queue_load(WHOLE)
    driver.insert_fresh(WHOLE)
    driver.drain()
    driver.reset()
    driver.require_idle("a reset")
    driver.require_all_free("a reset")


@clause("FLOW-7", page_sizes=[16])
def test_repeated_loads_take_no_slots(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    before = driver.free_device_slots(), driver.free_host_slots()
    for number in range(6):
        load = driver.queue_load(WHOLE)
        outcome = fails if number % 2 else succeeds
        outcome(driver, TransferKind.LOAD)
        driver.claim(load.ticket)
        driver.evict_all()
        after = driver.free_device_slots(), driver.free_host_slots()
        assert after == before, f"FLOW-7: {number + 1} loads: expected {before} free slots, got {after}"


@clause("FLOW-7", write_policies=WritePolicy)
@pytest.mark.parametrize("seed", range(3))
def test_many_operations_at_once_leave_nothing_held(driver: Scenario, seed: int) -> None:
    rng = Random(seed)
    prompts = [WHOLE, BRANCH, (5, 6), (5, 7)]
    driver.put_on_host(*prompts)
    receipts, host_receipts = [], []
    loads = [driver.queue_load(pages) for pages in rng.sample(prompts, 3)]
    driver.step()
    for pages in rng.sample(prompts, 2):
        found = driver.match(driver.key_of(pages), chunked=True)
        host_receipts.append(driver.lock_host(found.best_match))
        driver.insert_fresh(pages)
        receipts.append(driver.lock(driver.find(pages)))
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
    driver.require_idle(f"all was released, seed {seed}")
    driver.require_all_evictable(f"all was released, seed {seed}")


# FLOW-7: sequences of operations leave nothing.


def loaded_and_claimed(driver: Scenario) -> None:
    """A load is claimed."""
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    driver.drain()
    driver.claim(load.ticket)


def loaded_twice(driver: Scenario) -> None:
    """Two loads share pages; one is abandoned at once, the other when it has ended."""
    driver.put_on_host(WHOLE[:2], WHOLE)
    loads = [driver.queue_load(WHOLE[:2]), driver.queue_load(WHOLE)]
    driver.abandon(loads[0].ticket)
    driver.drain()
    driver.abandon(loads[1].ticket)


def computed_meanwhile(driver: Scenario) -> None:
    """A prompt is computed while it is loaded."""
    driver.put_on_host(WHOLE)
    load = driver.queue_load(WHOLE)
    driver.insert_fresh([*WHOLE, 4])
    driver.drain()
    driver.claim(load.ticket)


def locked_and_split(driver: Scenario) -> None:
    """A node is locked on both tiers, and split."""
    driver.put_on_both(WHOLE)
    receipts = driver.lock_pages(WHOLE), driver.lock_host(driver.best_match(WHOLE))
    driver.put_pages([*WHOLE[:1], 9])
    driver.evict_all()
    driver.evict_all_host()
    driver.unlock_host(receipts[1])
    driver.unlock(receipts[0])


def pressed(driver: Scenario) -> None:
    """More is inserted than either tier can hold."""
    for number in range(12):
        driver.put_pages([number, 50, 51, 52])
        driver.step()


def round_and_round(driver: Scenario) -> None:
    """Prompts are evicted and loaded repeatedly, in reused slots of both tiers."""
    for number in range(8):
        driver.put_pages([number, 50, 51])
        driver.step()
        driver.evict_all()
        for old in (number, max(0, number - 2)):
            driver.load(driver.key_of([old, 50, 51]))


def lost_in_part(driver: Scenario) -> None:
    """Each component of an inner node is evicted from each tier, and loaded again."""
    for component in driver.config.components:
        driver.put_on_both(TOMBSTONE, driver.longer_prompt())
        driver.evict_inner(component)
        driver.evict_all_host(component)
        driver.load(driver.key_of(TOMBSTONE))


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
def test_a_sequence_of_operations_leaves_nothing_held(driver: Scenario, sequence: Callable[[Scenario], None]) -> None:
    sequence(driver)
    driver.require_all_evictable(sequence.__name__)


@clause("FLOW-7", "FLOW-3", needs=[Capability.SIZES], page_sizes=[16])
@pytest.mark.parametrize("kind", list(TransferKind), ids=lambda kind: kind.value)
def test_failed_transfers_leave_nothing_held(driver: Scenario, kind: TransferKind) -> None:
    if kind is TransferKind.LOAD:
        driver.put_on_host(WHOLE)
        load = driver.queue_load(WHOLE)
    for pages in ([8], [8, 9], [8, 9, 10]):
        driver.put_pages(pages)
        driver.put_pages(pages)
    driver.step()
    for one in driver.pending(*TransferKind):
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    if kind is TransferKind.LOAD:
        driver.claim(load.ticket)
    driver.require_idle(f"every {kind.value} failed")
    driver.require_all_evictable(f"every {kind.value} failed")


@clause("FLOW-7", "REQ-2", needs=[Capability.SIZES, Capability.REQUESTS], page_sizes=[16])
@PHASES
def test_a_request_aborted_while_its_first_pages_are_loaded_leaves_nothing_held(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    admission = driver.admit(driver.key_of([*WHOLE, 4]))
    assert admission is not None, "REQ-5: a request of four pages fits"
    assert admission.loading, f"HOST-4: three of its pages are on the host, got {admission}"
    phase(driver, TransferKind.LOAD)
    driver.abort(admission.request)
    driver.require_all_evictable(f"aborted when the load was {phase.__name__}")


@clause("FLOW-7", "FLOW-3", "REQ-2", needs=[Capability.SIZES, Capability.REQUESTS], page_sizes=[16])
@pytest.mark.parametrize("end", ["abort", "resume and finish"])
def test_a_request_whose_load_failed_leaves_nothing_held(driver: Scenario, end: str) -> None:
    driver.put_on_host(WHOLE)
    admission = driver.admit(driver.key_of([*WHOLE, 4]))
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
    driver.require_all_evictable(f"a load failed, and the request ended by {end}")
