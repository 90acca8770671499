"""EVICT-7: with write_back a victim without a host copy is backed up before it leaves the device, or stays there."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    allocate_all,
    best_match,
    capacity_for,
    evict_all,
    host_config,
    host_variant,
    key_of,
    lock,
    put,
    put_on_host,
    tier_hits,
)
from .tree_view import device_locks, free_host_slots, host_slots, nodes, prefixes

OLD, NEW = (1, 2), (3, 4)
BACK = [WritePolicy.WRITE_BACK]


@clause("EVICT-7", write_policies=BACK)
def test_a_victim_is_backed_up_within_the_call_whichever_component_is_evicted(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put(driver, NEW)
        driver.drain()
        assert not host_slots(driver, FULL), f"HOST-1: nothing is copied before it leaves: {host_slots(driver, FULL)}"
        result = driver.evict(component, driver.config.capacity_tokens[component])
        assert result.refused == 0, f"EVICT-7: the host is empty, yet {result}"
        assert tier_hits(driver, NEW) == (0, 2), (
            f"EVICT-7: both pages went to the host: expected (0, 2), got {tier_hits(driver, NEW)}"
        )
        driver.verify_state(key_of(driver, NEW), driver.load(key_of(driver, NEW)))
        assert tier_hits(driver, NEW) == (2, 0), (
            f"FLOW-8: both pages came back: expected (2, 0), got {tier_hits(driver, NEW)}"
        )


@clause("EVICT-7", "EVICT-5", write_policies=BACK)
def test_a_child_is_demoted_while_its_parent_stays_on_the_device(driver: Driver) -> None:
    chain = (1, 2, 3)
    for count in (1, 2, 3):
        put(driver, chain[:count])
    for count in (2, 1, 0):
        driver.evict(FULL, 1)
        assert tier_hits(driver, chain) == (count, 3 - count), (
            f"EVICT-7: {count} pages stay: expected {(count, 3 - count)}, got {tier_hits(driver, chain)}"
        )
        below, expected = host_slots(driver, FULL).keys(), prefixes(*chain) - prefixes(*chain[:count])
        assert below == expected, f"EVICT-7: {expected} was to be on the host, got {below}"


@clause("EVICT-7", "FLOW-4", write_policies=BACK)
def test_a_victim_stays_when_no_room_can_be_made_on_the_host(driver: Driver) -> None:
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 1)}) as small:
        put_on_host(small, OLD)
        receipt = small.lock_host(best_match(small, OLD))
        put(small, NEW)
        for component in small.config.components:
            result = small.evict(component, 1)
            counts = result.victims, result.refused, result.freed[component]
            assert counts == (0, 1, 0), f"EVICT-7: victims, refused, freed for {component}: {result}"
            found = tier_hits(small, OLD), tier_hits(small, NEW)
            assert found == ((0, 2), (2, 0)), f"EVICT-7: each stays where it is, got {found}"
        assert small.allocate(small.config.capacity_tokens[FULL]) is None, "EVICT-7: a part of the device cannot leave"
        small.unlock_host(receipt)
        evict_all(small)
        found = tier_hits(small, OLD), tier_hits(small, NEW)
        assert found == ((0, 0), (0, 2)), f"EVICT-7: there is room again, in place of the older one, got {found}"


@clause("EVICT-7", "FLOW-3", write_policies=BACK)
def test_a_victim_stays_when_its_copy_fails(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put(driver, NEW)
        driver.adapter.fail_waits(1)
        result = driver.evict(component, 1)
        assert (result.victims, result.refused) == (0, 1), f"EVICT-7: the copy failed, and the victim stays: {result}"
        assert tier_hits(driver, NEW) == (2, 0), (
            f"EVICT-7: it is on the device still: expected (2, 0), got {tier_hits(driver, NEW)}"
        )
        free, capacity = free_host_slots(driver), host_config(driver.config).capacity_tokens
        assert free == capacity, f"FLOW-3: nothing came to the host: of {capacity} are free {free}"
        driver.evict(component, 1)
        assert tier_hits(driver, NEW) == (0, 2), (
            f"FLOW-4: the next eviction backs it up: expected (0, 2), got {tier_hits(driver, NEW)}"
        )


@clause("FLOW-4", "EVICT-7", write_policies=BACK)
def test_a_victim_whose_copy_failed_three_times_is_dropped(driver: Driver) -> None:
    put(driver, NEW)
    refused = 0
    while nodes(driver) and refused < 10:
        driver.adapter.fail_waits(1)
        refused += driver.evict(FULL, 1).refused
    assert refused in (2, 3), f"FLOW-4: after three copies that failed it is dropped, it stayed {refused} times"
    assert not nodes(driver), f"EVICT-7: it has no copy and is dropped, left is {nodes(driver).keys()}"


@clause("EVICT-7", "FLOW-4", write_policies=BACK)
def test_a_node_larger_than_the_host_is_dropped_with_its_descendants(driver: Driver) -> None:
    below = (*NEW, 5)
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 1, 1)}) as small:
        put(small, NEW)
        put(small, below)
        small.evict(FULL, 1)
        assert tier_hits(small, below) == (2, 1), (
            f"EVICT-7: page 5 alone fits on the host: expected (2, 1), got {tier_hits(small, below)}"
        )
        receipt = small.lock_host(best_match(small, below))
        result = small.evict(FULL, 1)
        assert (result.victims, result.refused) == (0, 1), f"LOCK-7: what is below is locked on the host, yet {result}"
        small.unlock_host(receipt)
        result = small.evict(FULL, 1)
        assert (result.victims, result.refused) == (1, 0), f"EVICT-7: the host could never take {NEW}: {result}"
        assert not nodes(small), f"EVICT-7: {below} goes with {NEW}, left is {nodes(small).keys()}"
        free = free_host_slots(small)
        assert free == host_config(small.config).capacity_tokens, f"POOL-1: the host is empty, free are {free}"


@clause("EVICT-7", "EVICT-8", write_policies=BACK)
def test_host_copies_of_device_data_are_evicted_for_new_backups(driver: Driver) -> None:
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 1)}) as small:
        put_on_host(small, OLD)
        put(small, NEW)
        leaving, staying = NEW, OLD
        for _ in range(6):
            small.load(key_of(small, staying))
            small.evict(FULL, 1)
            found = tier_hits(small, staying), tier_hits(small, leaving)
            assert found == ((2, 0), (0, 2)), f"EVICT-7: {staying} gives up its copy for {leaving}, got {found}"
            leaving, staying = staying, leaving


@clause("EVICT-7", "LOCK-2", "FLOW-3", write_policies=BACK, needs=[Capability.SIZES])
def test_backups_during_an_eviction_leave_the_locks_of_callers_unchanged(driver: Driver) -> None:
    put(driver, OLD)
    receipt = lock(driver, OLD)
    before = device_locks(driver), {name: size.protected for name, size in driver.adapter.sizes().items()}
    for pages in (NEW, (*OLD, 7)):
        put(driver, pages)
    for fails in (1, 0):
        driver.adapter.fail_waits(fails)
        evict_all(driver)
        driver.step()
        after = device_locks(driver), {name: size.protected for name, size in driver.adapter.sizes().items()}
        assert after == before, f"LOCK-2: one receipt holds {before}, after an eviction {after}"
    driver.unlock(receipt)


@clause("EVICT-7", "FLOW-8", write_policies=BACK, needs=[Capability.SIZES])
def test_an_allocation_backs_up_what_it_displaces(driver: Driver) -> None:
    put(driver, OLD)
    put(driver, NEW)
    slots = allocate_all(driver)
    assert host_slots(driver, FULL), "EVICT-7: the oldest prompt was displaced and had no copy; the host has nothing"
    driver.free(slots)
    for pages in (OLD, NEW):
        driver.load(key_of(driver, pages))
        assert tier_hits(driver, pages) == (2, 0), (
            f"FLOW-8: {pages} is there again: expected (2, 0), got {tier_hits(driver, pages)}"
        )
