"""INS-3, INS-4: inserts over nodes that are on the host alone."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    FreshInsert,
    drop_on_device,
    has,
    insert_fresh,
    key_of,
    put_on_host,
    tier_hits,
    unit,
    window_pages,
)
from .tree_view import device_slots, free_device_slots, host_slots, prefixes

WHOLE = (1, 2, 3)


def below(driver: Driver) -> dict[str, dict[tuple[int, ...], tuple[int, ...]]]:
    """Everything that is cached on the host."""
    return {component: host_slots(driver, component) for component in driver.config.components}


def given(own: FreshInsert, pages: tuple[int, ...]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """The FULL slots of an insert, by prefix."""
    parts = own.slots.reshape(len(pages), -1).tolist()
    return {pages[: count + 1]: tuple(part) for count, part in enumerate(parts)}


def require_room(driver: Driver, pages: int, states: int) -> None:
    """The tree has so many pages and states on the device, and all other slots are free."""
    expected = {
        name: tokens - (states if name == MAMBA else pages * unit(driver, name))
        for name, tokens in driver.config.capacity_tokens.items()
    }
    free = free_device_slots(driver)
    assert free == expected, f"INS-3: {pages} pages and {states} states are cached: {expected} free, got {free}"


@clause("INS-3")
def test_an_insert_over_an_evicted_prompt_uses_its_own_slots(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    before = below(driver)
    own = insert_fresh(driver, WHOLE)
    expected = given(own, WHOLE)
    assert device_slots(driver, FULL) == expected, (
        f"INS-3: the device lacked it and takes {expected}, it has {device_slots(driver, FULL)}"
    )
    assert own.result.prefix_length == 0, (
        f"INS-3: none of it was on the device: expected 0 present tokens, got {own.result.prefix_length}"
    )
    if has(driver, MAMBA):
        assert device_slots(driver, MAMBA)[WHOLE] == (own.state,), f"INS-3: the state {own.state} is taken as well"
    assert below(driver) == before, f"INS-3: the copies on the host were {before} and are {below(driver)}"
    assert tier_hits(driver, WHOLE) == (3, 0), (
        f"INS-3: all of it is on the device: expected (3, 0), got {tier_hits(driver, WHOLE)}"
    )
    require_room(driver, 3, 1)


@clause("INS-3", needs=[Capability.COUNTERS])
def test_a_node_with_a_host_copy_is_not_backed_up_again(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    before = driver.adapter.counters()["bytes_backed_up"]
    for _ in range(2):
        insert_fresh(driver, WHOLE)
        driver.match(key_of(driver, WHOLE))
        driver.drain()
    moved = driver.adapter.counters()["bytes_backed_up"] - before
    assert moved == 0, f"INS-3: the host has all of {WHOLE}, and {moved} bytes were backed up again"


@clause("INS-3", "INS-1")
def test_an_insert_continues_below_evicted_nodes(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    longer = (*WHOLE, 4, 5)
    own = insert_fresh(driver, longer)
    expected = given(own, longer)
    assert device_slots(driver, FULL) == expected, f"INS-3: expected {expected}, got {device_slots(driver, FULL)}"
    require_room(driver, 5, 1)


@clause("INS-3", "INS-1")
def test_an_insert_adds_the_pages_that_the_device_lacks(driver: Driver) -> None:
    put_on_host(driver, [1], WHOLE)
    driver.load(key_of(driver, [1]))
    there = device_slots(driver, FULL)
    own = insert_fresh(driver, WHOLE)
    expected = given(own, WHOLE) | there
    assert device_slots(driver, FULL) == expected, (
        f"INS-3: page 1 was there: {expected}, got {device_slots(driver, FULL)}"
    )
    size = driver.config.page_size
    assert own.result.prefix_length == size, f"INS-1: a page of {size} was there, got {own.result.prefix_length}"
    require_room(driver, 3, 2)


@clause("INS-3", "INS-8")
def test_an_insert_that_ends_inside_an_evicted_node_restores_its_first_pages(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    before = below(driver)
    own = insert_fresh(driver, WHOLE[:2])
    expected = given(own, WHOLE[:2])
    assert device_slots(driver, FULL) == expected, (
        f"INS-3: two pages came to the device: {expected}, got {device_slots(driver, FULL)}"
    )
    after = {
        component: {prefix: below(driver)[component].get(prefix) for prefix in before[component]}
        for component in before
    }
    assert after == before, f"INS-8: host slots {before} became {after} in a split"
    assert tier_hits(driver, WHOLE) == (2, 1), (
        f"INS-3: page 3 is on the host alone: expected (2, 1), got {tier_hits(driver, WHOLE)}"
    )
    require_room(driver, 2, 1)


@clause("INS-3", "INS-4", components=(SWA,), page_sizes=[16])
@pytest.mark.parametrize("passed", range(4))
def test_an_insert_over_an_evicted_node_restores_swa_data_of_its_window_alone(driver: Driver, passed: int) -> None:
    pages = tuple(range(1, 4 + window_pages(driver.config)))
    put_on_host(driver, pages)
    before = host_slots(driver, SWA)
    own = insert_fresh(driver, pages, passed=passed)
    assert device_slots(driver, FULL) == given(own, pages), (
        f"INS-3: all FULL slots are taken, got {device_slots(driver, FULL)}"
    )
    found, expected = device_slots(driver, SWA).keys(), prefixes(*pages) - prefixes(*pages[:passed])
    assert found == expected, f"INS-4: the window has left {passed} pages: SWA data of {expected}, got {found}"
    assert host_slots(driver, SWA) == before, "INS-3: the host's SWA data changed"


@clause("INS-4", "INS-3", components=(SWA,))
def test_swa_data_that_is_on_the_host_alone_is_restored_by_an_insert(driver: Driver) -> None:
    drop_on_device(driver, SWA)
    before, full = below(driver), device_slots(driver, FULL)
    own = insert_fresh(driver, TOMBSTONE)
    restored = [device_slots(driver, SWA)[prefix] for prefix in sorted(prefixes(*TOMBSTONE))]
    expected = list(map(tuple, own.partners.reshape(len(TOMBSTONE), -1).tolist()))
    assert restored == expected, f"INS-4: the tombstone takes the SWA slots {expected}, it has {restored}"
    assert device_slots(driver, FULL) == full, "INS-4: FULL data was there and moved"
    assert below(driver) == before, "INS-4: the host's copies changed"
