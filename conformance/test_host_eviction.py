"""EVICT-8, EVICT-5: which nodes the host evicts, in which order, and which components."""

from __future__ import annotations

from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import FULL, MAMBA, evict_host, host_config, key_of, put_on_both, put_on_host, tier_hits, unit
from .tree_view import device_slots, free_host_slots, free_slots, host_slots, nodes, prefixes, residency

CHAIN = (1, 2, 3, 4)
LEAVES = (1, 2, 3, 4)


@clause("EVICT-8", "EVICT-5")
def test_the_host_evicts_from_the_leaves_up(driver: Driver) -> None:
    put_on_host(driver, *(CHAIN[:count] for count in range(1, len(CHAIN) + 1)))
    for count in range(len(CHAIN) - 1, -1, -1):
        driver.evict_host(FULL, 1)
        left, expected = host_slots(driver, FULL).keys(), prefixes(*CHAIN[:count])
        assert left == expected, f"EVICT-8: {len(CHAIN) - count} evictions leave {expected}, they left {left}"
        assert nodes(driver).keys() == expected, f"EVICT-8: nodes {nodes(driver).keys()} are left of {expected}"
        assert tier_hits(driver, CHAIN) == (0, count), (
            f"MATCH-1: {count} pages are left: expected {(0, count)}, got {tier_hits(driver, CHAIN)}"
        )


@clause("EVICT-8", "EVICT-5")
def test_a_node_with_a_child_on_the_host_stays_however_old_it_is(driver: Driver) -> None:
    put_on_host(driver, [1], [1, 2], [7])
    driver.match(key_of(driver, [1, 2]), chunked=True)
    driver.evict_host(FULL, 1)
    left = host_slots(driver, FULL).keys()
    assert left == {(1,), (1, 2)}, f"EVICT-8: 7 is the leaf that was not used, so that it goes; left is {left}"
    driver.evict_host(FULL, 1)
    left = host_slots(driver, FULL).keys()
    assert left == {(1,)}, f"EVICT-8: 1 has a child on the host, which goes before it; left is {left}"


@clause("EVICT-8")
def test_a_leaf_leaves_the_host_with_all_its_components(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1], [2])
        free = free_host_slots(driver)
        result = driver.evict_host(component, 1)
        expected = {name: unit(driver, name) for name in driver.config.components}
        gained = {name: count - free[name] for name, count in free_host_slots(driver).items()}
        assert (result.freed, gained) == (expected, expected), (
            f"EVICT-8: a leaf of one page that goes for {component} frees {expected}, got {result} and gained {gained}"
        )
        assert nodes(driver).keys() == {(2,)}, f"EVICT-8: 1 is on no tier any more, left is {nodes(driver).keys()}"


@clause("EVICT-8", "EVICT-1")
def test_a_host_eviction_frees_the_whole_pages_that_were_asked_for(driver: Driver) -> None:
    for component in driver.config.components:
        size = unit(driver, component)
        for asked in sorted({0, 1, size + 1, 3 * size}):
            driver.reset()
            put_on_host(driver, *([page] for page in LEAVES))
            expected = -(-asked // size)
            result = driver.evict_host(component, asked)
            found = result.freed[component], result.victims
            assert found == (expected * size, expected), (
                f"EVICT-1: {asked} of {component} asked in leaves of {size}: {expected} victims suffice, got {result}"
            )
            left = sorted(host_slots(driver, FULL))
            assert left == [(page,) for page in LEAVES[expected:]], f"EVICT-8: the oldest go first, left is {left}"


@clause("EVICT-8", page_sizes=[16])
def test_the_host_evicts_nodes_without_device_data_before_copies(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1], [2], [3])
        driver.load(key_of(driver, [1]))
        for page in (2, 3):
            driver.match(key_of(driver, [page]), chunked=True)
        order = []
        for _ in range(3):
            driver.evict_host(component, 1)
            order.append(sorted(host_slots(driver, component)))
        expected = [[(1,), (3,)], [(1,)], []]
        assert order == expected, f"EVICT-8: of {component}, 1 is on the device too: expected {expected}, got {order}"


@clause("EVICT-8")
def test_evicting_a_host_copy_leaves_the_device_unchanged(driver: Driver) -> None:
    put_on_both(driver, [1, 2], [3])
    before = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
    for component in reversed(driver.config.components):
        evict_host(driver, component)
        assert not host_slots(driver, component), f"EVICT-8: copies of {component} can be given up, and were not"
        after = residency(driver.snapshot(), driver.config), free_slots(driver.snapshot())
        assert after == before, f"EVICT-8: an eviction of {component} on the host changed the device"
    assert tier_hits(driver, [1, 2]) == (2, 0), (
        f"EVICT-8: 2 pages are on the device: expected (2, 0), got {tier_hits(driver, [1, 2])}"
    )


@clause("EVICT-8", "EVICT-6")
def test_one_eviction_can_empty_the_host(driver: Driver) -> None:
    for component in driver.config.components:
        driver.reset()
        put_on_host(driver, [1], [1, 2, 3], [1, 2, 4], [5, 6])
        driver.match(key_of(driver, [5, 9]), chunked=True)
        evict_host(driver, component)
        left = nodes(driver).keys()
        assert not left, f"EVICT-8: nothing is locked or on the device, and evicting {component} left {left}"
        free, capacity = free_host_slots(driver), host_config(driver.config).capacity_tokens
        assert free == capacity, f"EVICT-8: all of {capacity} is free, got {free}"


@clause("EVICT-6", "EVICT-8", components=(MAMBA,))
def test_an_ancestor_without_a_state_is_removed_with_its_last_child(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [7])
    driver.match(key_of(driver, [1, 9]), chunked=True)
    assert (1,) in nodes(driver), f"MATCH-8: the match that ended after page 1 splits there: {nodes(driver).keys()}"
    driver.match(key_of(driver, [7]), chunked=True)
    driver.evict_host(FULL, 1)
    assert nodes(driver).keys() == {(7,)}, f"EVICT-6: 1 can end no match and goes with 2, left {nodes(driver).keys()}"
    assert not device_slots(driver, FULL), "the scenario needs an empty device"
