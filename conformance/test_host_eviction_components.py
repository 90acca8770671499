"""EVICT-8, EVICT-3, EVICT-4: which components leave the host with the SWA data or the state of an inner node."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    evict_all,
    evict_host,
    evicted_with,
    longer_prompt,
    put_and_back_up,
    put_on_both,
    put_on_host,
    tier_hits,
)
from .tree_view import device_slots, host_slots, prefixes


def open_gap(driver: Driver, component: str) -> None:
    """Evict a component of the first two pages from the host, while the longer prompt is locked there."""
    receipt = driver.lock_host(best_match(driver, longer_prompt(driver)))
    evict_host(driver, component)
    driver.unlock_host(receipt)


def below(driver: Driver, *pages: int) -> set[str]:
    """The components that the host has of the last of these pages."""
    return {component for component in driver.config.components if pages in host_slots(driver, component)}


def require_gap(driver: Driver, component: str) -> None:
    """An inner node on the host loses a component and those after it, and the longer prompt still hits."""
    put_on_host(driver, TOMBSTONE, longer_prompt(driver))
    open_gap(driver, component)
    left, expected = below(driver, *TOMBSTONE), set(driver.config.components) - evicted_with(driver, component)
    assert left == expected, f"EVICT-4: {component} of an inner node left the host: {expected} stays, not {left}"
    assert host_slots(driver, FULL).keys() == prefixes(*longer_prompt(driver)), "EVICT-3: FULL data left the host"
    found = tier_hits(driver, longer_prompt(driver)), tier_hits(driver, TOMBSTONE)
    expected_reach = (0, len(longer_prompt(driver))), (0, 0)
    assert found == expected_reach, f"EVICT-3: the longer prompt hits, the gap does not: {expected_reach}, got {found}"


@clause("EVICT-8", "EVICT-3", "EVICT-4", components=(SWA,))
def test_swa_data_of_an_inner_node_leaves_a_gap_on_the_host(driver: Driver) -> None:
    require_gap(driver, SWA)


@clause("EVICT-8", "EVICT-3", "EVICT-4", components=(MAMBA,))
def test_the_state_of_an_inner_node_leaves_a_gap_on_the_host(driver: Driver) -> None:
    require_gap(driver, MAMBA)


def refilled(driver: Driver, component: str) -> None:
    """The components that the host lost are backed up with the next use, and no others."""
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    open_gap(driver, component)
    before = {
        name: host_slots(driver, name) for name in set(driver.config.components) - evicted_with(driver, component)
    }
    put_and_back_up(driver, TOMBSTONE)
    assert below(driver, *TOMBSTONE) == set(driver.config.components), (
        f"FLOW-8: {TOMBSTONE} is whole on the device and was used; the host has {below(driver, *TOMBSTONE)}"
    )
    after = {name: host_slots(driver, name) for name in before}
    assert after == before, f"HOST-1: only what the host lacked was to be copied: {before} became {after}"
    evict_all(driver)
    assert tier_hits(driver, TOMBSTONE) == (0, 2), (
        f"FLOW-8: both pages are on the host: expected (0, 2), got {tier_hits(driver, TOMBSTONE)}"
    )


COPYING = (WritePolicy.WRITE_THROUGH, WritePolicy.WRITE_THROUGH_SELECTIVE)


@clause("EVICT-8", "FLOW-8", components=(SWA,), write_policies=COPYING)
def test_swa_data_that_left_the_host_is_backed_up_again(driver: Driver) -> None:
    refilled(driver, SWA)


@clause("EVICT-8", "FLOW-8", components=(MAMBA,), write_policies=COPYING)
def test_a_state_that_left_the_host_is_backed_up_again(driver: Driver) -> None:
    refilled(driver, MAMBA)


@clause("EVICT-8", "EVICT-5")
def test_evicting_full_data_from_the_host_evicts_all_components_of_the_node(driver: Driver) -> None:
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    on_device = {component: device_slots(driver, component) for component in driver.config.components}
    driver.evict_host(FULL, 1)
    full = host_slots(driver, FULL).keys()
    assert prefixes(*longer_prompt(driver)) > full, f"EVICT-8: a leaf was to leave the host, {full} is left"
    for component in driver.config.components:
        alone = host_slots(driver, component).keys() - full
        assert not alone, f"EVICT-5: the host has {component} data of {alone} without FULL data"
        assert device_slots(driver, component) == on_device[component], f"EVICT-8: {component} left the device"
