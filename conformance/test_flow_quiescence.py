"""FLOW-7: after a drain without running requests nothing is locked, pinned, kept or counted as protected."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .checks import require_all_evictable, require_idle
from .scenario import (
    TOMBSTONE,
    best_match,
    evict_all,
    evict_host,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    put,
    put_on_both,
    put_on_host,
)
from .transfers import STAGES, Stage, queue_load

WHOLE = (1, 2, 3)


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
        receipt = lock(driver, longer_prompt(driver))
        evict_all(driver, component)
        driver.unlock(receipt)
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
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    if kind is TransferKind.LOAD:
        driver.claim(load.ticket)
    require_idle(driver, f"every {kind.value} failed")
    require_all_evictable(driver, f"every {kind.value} failed")


@clause("FLOW-7", "REQ-2", needs=[Capability.SIZES, Capability.REQUESTS], page_sizes=[16])
@STAGES
def test_a_request_aborted_while_it_waits_leaves_nothing_held(driver: Driver, stage: Stage) -> None:
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
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    if end == "abort":
        driver.abort(admission.request)
    else:
        assert driver.resume(admission.request) is not None, "FLOW-4: the load has ended, and the request waits still"
        driver.finish(admission.request)
    require_all_evictable(driver, f"a load failed, and the request ended by {end}")
