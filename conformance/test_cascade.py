"""EVICT-3 to EVICT-5: which other components an eviction of one component takes with it."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    evict_all,
    evicted_with,
    find,
    hit_pages,
    lock,
    longer_prompt,
    make_tombstone,
    put,
    unit,
)
from .tree_view import device_slots, nodes, prefixes


def present(driver: Driver, *pages: int) -> set[str]:
    """The components that the device has of the last of these pages."""
    return {component for component in driver.config.components if pages in device_slots(driver, component)}


def require_tombstone(driver: Driver, component: str) -> None:
    """An inner node loses a component and those after it, and the longer prompt still hits."""
    make_tombstone(driver, component)
    expected = set(driver.config.components) - evicted_with(driver, component)
    left = present(driver, *TOMBSTONE)
    assert left == expected, f"EVICT-4: {component} of an inner node was evicted: expected {expected} left, got {left}"
    assert device_slots(driver, FULL).keys() == prefixes(*longer_prompt(driver)), (
        "EVICT-3: expected the FULL data of the inner node to stay"
    )
    find(driver, longer_prompt(driver))
    assert hit_pages(driver, TOMBSTONE) == 0, f"EVICT-3: {TOMBSTONE} lost its {component} data: expected no hit"


@clause("EVICT-3", "EVICT-4", components=(SWA,))
def test_swa_data_of_an_inner_node_leaves_a_tombstone(driver: Driver) -> None:
    require_tombstone(driver, SWA)


@clause("EVICT-3", "EVICT-4", components=(MAMBA,))
def test_the_state_of_an_inner_node_leaves_a_tombstone(driver: Driver) -> None:
    require_tombstone(driver, MAMBA)


@clause("EVICT-4")
def test_an_inner_node_keeps_the_components_of_higher_rank(driver: Driver) -> None:
    for component in (MAMBA, SWA):
        make_tombstone(driver, component)
        left = present(driver, *TOMBSTONE)
        expected = {FULL} if component == SWA else {FULL, SWA}
        assert left == expected, f"EVICT-4: {component} was evicted there: expected {expected} left, got {left}"
        evict_all(driver)


@clause("EVICT-3", components=(SWA,), bigram=True)
def test_a_leaf_is_evicted_in_full_with_its_swa_data(driver: Driver) -> None:
    leaf_goes_as_a_whole(driver, SWA)


@clause("EVICT-3", components=(MAMBA,))
def test_a_leaf_is_evicted_in_full_with_its_state(driver: Driver) -> None:
    leaf_goes_as_a_whole(driver, MAMBA)


def leaf_goes_as_a_whole(driver: Driver, component: str) -> None:
    """Evict a component of a leaf: the leaf loses its data in every pool."""
    for page in (1, 2, 3):
        put(driver, [page])
    result = driver.evict(component, unit(driver, component))
    assert nodes(driver).keys() == {(2,), (3,)}, (
        f"EVICT-3: expected the oldest leaf to be evicted, left is {nodes(driver).keys()}"
    )
    expected = {name: unit(driver, name) for name in driver.config.components}
    assert result.freed == expected, f"EVICT-3: a leaf of one page frees {expected}, got {result}"


@clause("EVICT-3", components=(SWA,), bigram=True)
def test_evicting_the_last_window_of_an_unlocked_prompt_evicts_its_leaf(driver: Driver) -> None:
    put(driver, longer_prompt(driver))
    evict_all(driver, SWA)
    left = {pages for component in driver.config.components for pages in device_slots(driver, component)}
    assert not left, f"EVICT-3: without SWA data no match ends at the leaf: expected it to be removed, left is {left}"


@clause("EVICT-5", components=(SWA,))
def test_evicting_an_inner_node_keeps_the_nodes_below_it(driver: Driver) -> None:
    make_tombstone(driver, SWA)
    pages = longer_prompt(driver)
    receipt = lock(driver, pages)
    evict_all(driver)
    found = {component: device_slots(driver, component).keys() for component in (FULL, SWA)}
    driver.unlock(receipt)
    expected = {FULL: prefixes(*pages), SWA: prefixes(*pages) - prefixes(*TOMBSTONE)}
    assert found == expected, f"EVICT-5: a lock holds FULL up to the root and one window: {expected}, got {found}"


@clause("EVICT-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_full_data_is_evicted_from_the_leaves_up(driver: Driver) -> None:
    for count in range(1, 6):
        put(driver, range(1, count + 1))
    for count in range(4, 0, -1):
        driver.evict(FULL, 1)
        left = device_slots(driver, FULL).keys()
        expected = prefixes(*range(1, count + 1))
        assert left == expected, f"EVICT-5: after {5 - count} evictions expected {expected}, got {left}"
