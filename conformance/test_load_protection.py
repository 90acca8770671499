"""HOST-4: the source and the anchor of a load are not evicted until the load is claimed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle, TransferKind, TransferPhase

from .scenario import FULL, best_match, evict_all, evict_host, key_of, put_on_host, tier_hits
from .transfers import STAGES, Stage, pending_transfer, queue_load, start_load
from .tree_view import device_slots, host_slots

LOOKING = (Capability.SNAPSHOT,)
STEPPED = (ExecutorKind.STEPPED,)
PARENT, CHILD = [1, 2], [1, 2, 3, 4]

End = Callable[[Driver, Handle], object]
ENDS = pytest.mark.parametrize("end", [Driver.claim, Driver.abandon], ids=["claimed", "abandoned"])


def evict_both(driver: Driver) -> None:
    """Evict everything evictable, on the device and then on the host."""
    evict_all(driver)
    evict_host(driver)


@clause("HOST-4", "LOCK-5", needs=LOOKING, executors=STEPPED)
@STAGES
def test_the_anchor_and_the_source_of_a_load_are_not_evicted(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, PARENT, CHILD)
    driver.load(key_of(driver, PARENT))
    load = queue_load(driver, CHILD)
    stage(driver, TransferKind.LOAD)
    anchor = device_slots(driver, FULL)
    sources = {pages: slots for pages, slots in host_slots(driver, FULL).items() if pages not in anchor}
    evict_both(driver)
    left, there = device_slots(driver, FULL), host_slots(driver, FULL)
    assert left == anchor, f"HOST-4: {CHILD} is being loaded below {anchor.keys()}, of which is left {left.keys()}"
    assert sources.items() <= there.items(), f"HOST-4: {sources.keys()} is being read, and {there.keys()} is left"
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed"
    assert tier_hits(driver, CHILD).device == len(CHILD), (
        f"HOST-4: {CHILD} was loaded, {tier_hits(driver, CHILD)} is there"
    )


@clause("HOST-4", needs=LOOKING)
@ENDS
def test_loaded_pages_stay_until_the_load_is_claimed(driver: Driver, end: End) -> None:
    put_on_host(driver, CHILD)
    load = queue_load(driver, CHILD)
    driver.drain()
    assert driver.load_phase(load.ticket) is TransferPhase.DONE, "FLOW-4: it was drained"
    evict_all(driver)
    found = tier_hits(driver, CHILD)
    assert found.device == len(CHILD), f"HOST-4: the load was not claimed, and of {CHILD} {found} is there"
    end(driver, load.ticket)
    evict_all(driver)
    assert not device_slots(driver, FULL), (
        f"HOST-4: the load has ended: expected an empty device after eviction, got {device_slots(driver, FULL).keys()}"
    )


@clause("HOST-4", "LOCK-6", needs=LOOKING)
@ENDS
@pytest.mark.parametrize("first", [PARENT, CHILD], ids=["short first", "long first"])
def test_each_load_of_a_path_protects_it(driver: Driver, first: list[int], end: End) -> None:
    put_on_host(driver, PARENT, CHILD)
    loads = {len(pages): queue_load(driver, pages) for pages in (PARENT, CHILD)}
    driver.drain()
    end(driver, loads.pop(len(first)).ticket)
    ((length, load),) = loads.items()
    evict_all(driver)
    found = tier_hits(driver, CHILD[:length])
    assert found.device == length, f"HOST-4: another load of {CHILD[:length]} was not claimed, and {found} is there"
    end(driver, load.ticket)
    evict_all(driver)
    assert not device_slots(driver, FULL), (
        f"HOST-4: the load has ended: expected an empty device after eviction, got {device_slots(driver, FULL).keys()}"
    )


@clause("HOST-4", "FLOW-6", needs=LOOKING, executors=STEPPED)
@ENDS
def test_what_another_load_brought_stays_while_a_load_still_waits(driver: Driver, end: End) -> None:
    put_on_host(driver, PARENT, CHILD)
    first = start_load(driver, PARENT)
    shared = pending_transfer(driver, TransferKind.LOAD)
    second = start_load(driver, CHILD)
    driver.complete(shared.ticket)
    driver.step()
    end(driver, first.ticket)
    came = device_slots(driver, FULL)
    assert came, f"FLOW-2: {PARENT} has arrived: expected it on the device, got nothing"
    evict_both(driver)
    left = device_slots(driver, FULL)
    assert left == came, f"HOST-4: {CHILD} is being loaded below {came.keys()}, of which is left {left.keys()}"
    driver.drain()
    assert driver.claim(second.ticket) is not None, "FLOW-10: nothing failed: expected slots from the claim, got None"
    evict_all(driver)
    left = device_slots(driver, FULL)
    assert not left, f"HOST-4: both loads have ended: expected an empty device after eviction, got {left.keys()}"


@clause("HOST-4", "LOCK-7", needs=LOOKING)
def test_a_host_lock_keeps_a_hit_until_it_is_loaded(driver: Driver) -> None:
    put_on_host(driver, CHILD)
    receipt = driver.lock_host(best_match(driver, CHILD))
    evict_both(driver)
    load = queue_load(driver, CHILD)
    driver.unlock_host(receipt)
    evict_both(driver)
    driver.drain()
    assert driver.claim(load.ticket) is not None, "FLOW-10: nothing failed"
    assert tier_hits(driver, CHILD).device == len(CHILD), (
        f"HOST-4: {CHILD} was loaded, {tier_hits(driver, CHILD)} is there"
    )
