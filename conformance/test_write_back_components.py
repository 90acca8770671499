"""EVICT-7, FLOW-8: with write_back, SWA data and states of inner nodes are backed up before they leave the device."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    capacity_for,
    evict_all,
    evict_host,
    evicted_with,
    host_variant,
    key_of,
    lock,
    longer_prompt,
    put,
    put_on_host,
    tier_hits,
    unit,
)
from .transfers import bytes_moved, slot_bytes
from .tree_view import device_slots, free_host_slots, host_slots, prefixes

BACK = [WritePolicy.WRITE_BACK]
OLD, NEW = (1, 2), (3, 4)


def evict_inner(driver: Driver, component: str) -> int:
    """Evict a component of the first two pages while the longer prompt is locked; returns how many victims stayed."""
    receipt = lock(driver, longer_prompt(driver))
    result = driver.evict(component, driver.config.capacity_tokens[component])
    driver.unlock(receipt)
    return result.refused


def require_copy_first(driver: Driver, component: str) -> None:
    """The first two pages are backed up before they lose a component, and can be loaded."""
    put(driver, TOMBSTONE)
    put(driver, longer_prompt(driver))
    refused = evict_inner(driver, component)
    gone = {name for name in driver.config.components if TOMBSTONE not in device_slots(driver, name)}
    assert (gone, refused) == (evicted_with(driver, component), 0), f"EVICT-4: gone is {gone}, {refused} victims stayed"
    missing = {name for name in gone if TOMBSTONE not in host_slots(driver, name)}
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    driver.verify_state(key_of(driver, TOMBSTONE), driver.load(key_of(driver, TOMBSTONE)))
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"FLOW-8: it came back: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-8", components=(SWA,), write_policies=BACK)
def test_swa_data_of_an_inner_node_is_backed_up_first(driver: Driver) -> None:
    require_copy_first(driver, SWA)


@clause("EVICT-7", "FLOW-8", components=(MAMBA,), write_policies=BACK)
def test_a_state_of_an_inner_node_is_backed_up_first(driver: Driver) -> None:
    require_copy_first(driver, MAMBA)


def require_copy_of_the_rest(driver: Driver, component: str) -> None:
    """The host has the FULL data already: only the lacking components are backed up."""
    require_copy_first(driver, component)
    full = host_slots(driver, FULL)
    evict_host(driver, component)
    assert host_slots(driver, FULL) == full, (
        f"EVICT-8: expected {component} alone to leave the host, but FULL data changed"
    )
    free, before = free_host_slots(driver), bytes_moved(driver, TransferKind.BACKUP)
    refused = evict_inner(driver, component)
    assert refused == 0, f"EVICT-7: there is room on the host, yet {refused} victims stayed"
    missing = {name for name in evicted_with(driver, component) if TOMBSTONE not in host_slots(driver, name)}
    assert not missing, f"FLOW-8: {missing} of {TOMBSTONE} left the device and is not on the host"
    taken = {name: count - free_host_slots(driver)[name] for name, count in free.items()}
    assert taken[FULL] == 0, f"FLOW-6: the host had the FULL data, and took more: {taken}"
    copied, expected = bytes_moved(driver, TransferKind.BACKUP) - before, slot_bytes(driver, taken)
    assert copied == expected, f"FLOW-6: {taken} were copied, which are {expected} bytes, counted are {copied}"
    driver.verify_state(key_of(driver, TOMBSTONE), driver.load(key_of(driver, TOMBSTONE)))
    assert tier_hits(driver, TOMBSTONE) == (2, 0), (
        f"FLOW-8: it came back: expected (2, 0), got {tier_hits(driver, TOMBSTONE)}"
    )


@clause("EVICT-7", "FLOW-8", components=(SWA,), write_policies=BACK, needs=[Capability.COUNTERS])
def test_swa_data_alone_is_backed_up_where_the_host_has_the_rest(driver: Driver) -> None:
    require_copy_of_the_rest(driver, SWA)


@clause("EVICT-7", "FLOW-8", components=(MAMBA,), write_policies=BACK, needs=[Capability.COUNTERS])
def test_a_state_alone_is_backed_up_where_the_host_has_the_rest(driver: Driver) -> None:
    require_copy_of_the_rest(driver, MAMBA)


def require_refusal(driver: Driver, component: str) -> None:
    """An inner node loses nothing while the host has no room for it."""
    pages = len(TOMBSTONE)
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, pages, 1)}) as small:
        put_on_host(small, [8, 9])
        receipt = small.lock_host(best_match(small, [8, 9]))
        for prompt in (TOMBSTONE, longer_prompt(small)):
            put(small, prompt)
        before = {name: device_slots(small, name) for name in small.config.components}
        refused = evict_inner(small, component)
        after = {name: device_slots(small, name) for name in small.config.components}
        assert after == before, f"EVICT-7: without room on the host {before} stays, it became {after}"
        assert refused >= 1, (
            f"EVICT-7: {component} of {TOMBSTONE} stayed: expected at least one refused victim, got {refused}"
        )
        small.unlock_host(receipt)
        refused = evict_inner(small, component)
        assert TOMBSTONE not in device_slots(small, component), (
            f"EVICT-7: there is room by now, {refused} victims stayed"
        )
        assert TOMBSTONE in host_slots(small, component), f"FLOW-8: {component} left the device for the host"


@clause("EVICT-7", "FLOW-4", components=(SWA,), write_policies=BACK)
def test_swa_data_stays_where_the_host_has_no_room(driver: Driver) -> None:
    require_refusal(driver, SWA)


@clause("EVICT-7", "FLOW-4", components=(MAMBA,), write_policies=BACK)
def test_a_state_stays_where_the_host_has_no_room(driver: Driver) -> None:
    require_refusal(driver, MAMBA)


@clause("EVICT-7", "EVICT-1", write_policies=BACK)
def test_a_victim_that_stays_does_not_stop_the_next(driver: Driver) -> None:
    with host_variant(driver, host={"capacity_tokens": capacity_for(driver.config, 2, 1)}) as small:
        put_on_host(small, OLD)
        receipt = small.lock_host(best_match(small, OLD))
        for component in small.config.components:
            small.load(key_of(small, OLD))
            put(small, NEW)
            small.match(key_of(small, OLD))
            result = small.evict(component, unit(small, component))
            assert (result.victims, result.refused) == (1, 1), f"EVICT-1: {NEW} stays, {OLD} goes instead: {result}"
            found = tier_hits(small, OLD), tier_hits(small, NEW)
            assert found == ((0, 2), (2, 0)), f"EVICT-7: {OLD} has a copy, {NEW} cannot have one, got {found}"
        small.unlock_host(receipt)
        evict_all(small)
        assert host_slots(small, FULL).keys() == prefixes(*NEW), f"EVICT-8: got {host_slots(small, FULL).keys()}"
