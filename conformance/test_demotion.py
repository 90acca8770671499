"""EVICT-7, EVICT-3, EVICT-2: nodes with a host copy leave the device and stay on the host; in which order."""

from __future__ import annotations

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    drop_on_device,
    evict_all,
    evicted_with,
    key_of,
    lock,
    longer_prompt,
    put,
    put_on_both,
    tier_hits,
)
from .tree_view import device_slots, host_slots, nodes, prefixes


@clause("EVICT-7", "FLOW-8")
def test_a_node_with_a_copy_is_demoted_whichever_component_is_evicted(driver: Driver) -> None:
    pages = key_of(driver, [1, 2])
    for component in driver.config.components:
        driver.reset()
        put_on_both(driver, [1, 2])
        evict_all(driver, component)
        left = {name for name in driver.config.components if device_slots(driver, name)}
        assert not left, f"EVICT-3: a leaf leaves the device whole; evicted for {component}, {left} is left"
        found = tier_hits(driver, [1, 2])
        assert found == (0, 2), (
            f"EVICT-7: evicted for {component}, both pages are on the host: expected (0, 2), got {found}"
        )
        driver.verify_state(pages, driver.load(pages))
        found = tier_hits(driver, [1, 2])
        assert found == (2, 0), (
            f"EVICT-7: demoted for {component} and loaded, both pages are back: expected (2, 0), got {found}"
        )


@clause("EVICT-7", "POOL-1")
def test_a_demotion_frees_the_device_slots_and_moves_no_host_slot(driver: Driver) -> None:
    put_on_both(driver, [1, 2], [3])
    below = {component: host_slots(driver, component) for component in driver.config.components}
    evict_all(driver)
    free = {component: len(pool.free) for component, pool in driver.snapshot().pools.items()}
    assert free == driver.config.capacity_tokens, f"EVICT-7: all of the device is free, got {free}"
    after = {component: host_slots(driver, component) for component in driver.config.components}
    assert after == below, f"EVICT-7: a demotion moved host slots from {below} to {after}"


@clause("POOL-5", "EVICT-7", components=(SWA,), needs=[Capability.HOST])
def test_slots_of_a_demoted_node_have_no_partners(driver: Driver) -> None:
    put_on_both(driver, [1, 2])
    old = driver.match(key_of(driver, [1, 2]), chunked=True).device_indices
    evict_all(driver)
    partners = driver.adapter.partners(old)
    assert not partners.any(), f"POOL-5: slots {old.tolist()} are free, their partners are {partners.tolist()}"
    for pages in ([3, 4], [5, 6]):
        put(driver, pages)
    driver.load(key_of(driver, [1, 2]))
    evict_all(driver)
    held_slots = {component: device_slots(driver, component) for component in (FULL, SWA)}
    assert held_slots == {FULL: {}, SWA: {}}, (
        f"POOL-5: expected everything to be evicted after slots were reused, left is {held_slots}"
    )


def require_loss_of_one_tier(driver: Driver, component: str) -> None:
    """A tombstone on the device hits through its host copy, and has all components again after a load."""
    drop_on_device(driver, component)
    gone = {name for name in driver.config.components if TOMBSTONE not in device_slots(driver, name)}
    assert gone == evicted_with(driver, component), (
        f"EVICT-4: {evicted_with(driver, component)} leaves an inner node, not {gone}"
    )
    missing = {name for name in gone if TOMBSTONE not in host_slots(driver, name)}
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    best_match(driver, longer_prompt(driver))
    found = driver.match(key_of(driver, TOMBSTONE), chunked=True)
    assert not len(found.device_indices), f"EVICT-3: {TOMBSTONE} has a gap on the device, and hits there"
    hits = found.component_host_hit_lengths[component], found.host_hit_length
    assert hits[0] > 0, f"FLOW-8: the {component} data of {TOMBSTONE} is a hit on the host, got {found}"
    assert hits[1] == 0, f"MATCH-12: its FULL data is on the device, yet {hits[1]} tokens are to be loaded"
    driver.verify_state(key_of(driver, TOMBSTONE), driver.load(key_of(driver, TOMBSTONE)))
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"EVICT-7: loaded, it is whole: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-8", "EVICT-3", components=(SWA,))
def test_swa_data_that_an_inner_node_lost_on_the_device_is_on_the_host(driver: Driver) -> None:
    require_loss_of_one_tier(driver, SWA)


@clause("EVICT-7", "FLOW-8", "EVICT-3", components=(MAMBA,))
def test_a_state_that_an_inner_node_lost_on_the_device_is_on_the_host(driver: Driver) -> None:
    require_loss_of_one_tier(driver, MAMBA)


@clause("EVICT-3", "EVICT-7")
def test_a_node_whose_children_are_on_the_host_alone_is_a_leaf_of_the_device(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_both(driver, TOMBSTONE, longer_prompt(driver))
        driver.evict(FULL, 1)
        assert device_slots(driver, FULL).keys() == prefixes(*TOMBSTONE), (
            "EVICT-2: the deepest node leaves the device first"
        )
        evict_all(driver, component)
        left = {name for name in driver.config.components if device_slots(driver, name)}
        assert not left, f"EVICT-3: no child is on the device: with {component} all goes, {left} is left"
        found = tier_hits(driver, longer_prompt(driver))
        assert found == (0, len(longer_prompt(driver))), (
            f"FLOW-8: all of it is on the host: expected {(0, len(longer_prompt(driver)))}, got {found}"
        )


@clause("EVICT-5", "EVICT-7")
def test_nodes_are_demoted_from_the_leaves_up(driver: Driver) -> None:
    chain = (1, 2, 3, 4)
    put_on_both(driver, *(chain[:count] for count in range(1, 5)))
    for count in (3, 2, 1, 0):
        driver.evict(FULL, 1)
        left, expected = device_slots(driver, FULL).keys(), prefixes(*chain[:count])
        assert left == expected, f"EVICT-5: {4 - count} evictions leave {expected} on the device, left is {left}"
        assert tier_hits(driver, chain) == (count, 4 - count), (
            f"FLOW-8: got {tier_hits(driver, chain)} after {4 - count}"
        )


@clause("EVICT-2", needs=[Capability.HOST], page_sizes=[16])
def test_a_use_of_a_demoted_node_counts_as_a_use_of_its_parent(driver: Driver) -> None:
    put_on_both(driver, [1], [7], [1, 2])
    for pages in ([7], [1, 2]):
        driver.match(key_of(driver, pages))
    receipt = lock(driver, [7])
    driver.match(key_of(driver, [1, 2]))
    driver.evict(FULL, 1)
    driver.unlock(receipt)
    assert device_slots(driver, FULL).keys() == {(1,), (7,)}, (
        f"EVICT-2: 7 was locked, left is {device_slots(driver, FULL).keys()}"
    )
    driver.evict(FULL, 1)
    left = device_slots(driver, FULL).keys()
    assert left == {(1,)}, f"EVICT-2: 1 was used with 1, 2, after 7, so that 7 goes first; left is {left}"


@clause("EVICT-7", executors=[ExecutorKind.STEPPED], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_node_without_a_copy_is_removed(driver: Driver) -> None:
    put(driver, [1, 2])
    driver.step()
    for one in driver.pending():
        driver.fail(one.ticket, parts_done=0)
    driver.step()
    evict_all(driver)
    assert not nodes(driver), f"EVICT-7: there is no copy of 1, 2, and it stays in the tree: {nodes(driver).keys()}"
    assert tier_hits(driver, [1, 2]) == (0, 0), (
        f"FLOW-3: nothing of it is left: expected (0, 0), got {tier_hits(driver, [1, 2])}"
    )
