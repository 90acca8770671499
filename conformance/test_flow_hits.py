"""FLOW-8, FLOW-10: nodes that leave the device are hits on the host, and a reported hit can be loaded."""

from __future__ import annotations

from itertools import permutations

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import REFUSALS
from .scenario import (
    allocate_all,
    best_match,
    evict_all,
    evict_host,
    key_of,
    put,
    put_and_back_up,
    put_on_both,
    put_on_host,
    tier_hits,
)
from .tree_view import device_slots, host_slots, prefixes

PROMPTS = ((1, 2), (1, 2, 3, 4), (1, 2, 9))
PREFIXES = sorted({prefix for pages in PROMPTS for prefix in prefixes(*pages)})


def hits(driver: Driver) -> dict[tuple[int, ...], int]:
    """The device hit of each prefix of the prompts, in pages."""
    return {prefix: tier_hits(driver, prefix).device for prefix in PREFIXES}


def hits_after_loads(driver: Driver) -> dict[tuple[int, ...], int]:
    """The same after a load of each prefix; states are verified too."""
    found = {}
    for prefix in PREFIXES:
        hit = driver.load(key_of(driver, prefix))
        driver.verify_state(key_of(driver, prefix), hit)
        found[prefix] = len(hit.device_indices) // driver.config.page_size
    return found


@clause("FLOW-8", page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH], executors=[ExecutorKind.STEPPED])
def test_every_prefix_hits_as_far_as_before_after_an_eviction_on_the_device(driver: Driver) -> None:
    for count in range(1, 3):
        for order in permutations(driver.config.components, count):
            driver.reset()
            put_on_both(driver, *PROMPTS)
            before = hits(driver)
            evict_all(driver, *order)
            after = hits_after_loads(driver)
            assert after == before, f"FLOW-8: {order} left the device; hits {before} are {after} after loads"


@clause("FLOW-8", needs=[Capability.SIZES])
def test_every_prefix_hits_as_far_as_before_after_an_allocation_took_the_device(driver: Driver) -> None:
    put_on_both(driver, *PROMPTS)
    before = hits(driver)
    slots = allocate_all(driver)
    left = sum(hits(driver).values())
    assert left == 0, f"EVICT-1: callers hold all slots: expected no device hit, got {left} pages"
    driver.free(slots)
    after = hits_after_loads(driver)
    assert after == before, f"FLOW-8: all was backed up; hits {before} are {after} after loads"


@clause("FLOW-8", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_backup_covers_each_component(driver: Driver) -> None:
    put_and_back_up(driver, *PROMPTS)
    for component in driver.config.components:
        lost = device_slots(driver, component).keys() - host_slots(driver, component).keys()
        assert not lost, f"FLOW-8: the {component} data of {lost} is on the device alone, with nothing under way"


@clause("FLOW-10", layouts=True, write_policies=WritePolicy)
def test_a_hit_on_the_host_is_loaded(driver: Driver) -> None:
    put_on_host(driver, *PROMPTS)
    for pages in PREFIXES:
        key = key_of(driver, pages)
        promised = sum(tier_hits(driver, pages))
        found = driver.load(key)
        delivered = len(found.device_indices) // driver.config.page_size
        assert delivered == promised, f"FLOW-10: {promised} pages were reported for {pages}, {delivered} delivered"
        driver.verify_state(key, found)


@clause("FLOW-10", "FLOW-5")
def test_a_hit_that_left_the_host_in_part_is_not_loaded(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1, 2])
        key = key_of(driver, [1, 2])
        found = driver.match(key)
        driver.evict_host(component, 1)
        before = driver.adapter.sizes()
        try:
            load = driver.adapter.load_back(found.best_match, quota=None)
        except REFUSALS:
            load = None
        assert load is None, f"FLOW-10: the {component} data left the host after the match, and a load was started"
        after = driver.adapter.sizes()
        assert after == before, f"FLOW-10: a load that was not started changed {before} to {after}"
        driver.check()


@clause("FLOW-10", "LOCK-7")
def test_a_hit_that_is_locked_on_the_host_can_be_loaded(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [3])
    key = key_of(driver, [1, 2])
    found = driver.match(key)
    receipt = driver.lock_host(found.best_match)
    evict_host(driver)
    load = driver.load_back(key, found)
    assert load is not None, f"LOCK-7: {found.host_hit_length} tokens were found and locked, and cannot be loaded"
    driver.drain()
    driver.claim(load.ticket)
    driver.unlock_host(receipt)
    assert tier_hits(driver, [1, 2]) == (2, 0), (
        f"FLOW-10: both pages are on the device: expected (2, 0), got {tier_hits(driver, [1, 2])}"
    )


@clause("FLOW-10", needs=[Capability.SIZES])
def test_loaded_pages_stay_until_the_load_is_claimed(driver: Driver) -> None:
    put_on_host(driver, [1, 2])
    key = key_of(driver, [1, 2])
    load = driver.load_back(key, driver.match(key))
    assert load is not None, "HOST-4: both pages are on the host, and there is room"
    driver.drain()
    evict_all(driver)
    assert tier_hits(driver, [1, 2]) == (2, 0), (
        f"FLOW-10: the load is not claimed: expected (2, 0), got {tier_hits(driver, [1, 2])}"
    )
    receipt = driver.lock(best_match(driver, [1, 2]))
    driver.claim(load.ticket)
    evict_all(driver)
    assert tier_hits(driver, [1, 2]) == (2, 0), (
        f"LOCK-5: it is locked: expected (2, 0), got {tier_hits(driver, [1, 2])}"
    )
    driver.unlock(receipt)
    evict_all(driver)
    assert tier_hits(driver, [1, 2]) == (0, 2), (
        f"LOCK-2: the device lock is released: expected (0, 2), got {tier_hits(driver, [1, 2])}"
    )
    put(driver, [1, 2])
