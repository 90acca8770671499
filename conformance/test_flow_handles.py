"""FLOW-5: a handle of a node that changed since the match is resolved again, or refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle, TransferKind

from .checks import refused
from .scenario import FULL, evict_all, evict_host, insert_fresh, key_of, put, put_on_both, put_on_host, tier_hits
from .transfers import STAGES, Stage, queue_load, transfer_views
from .tree_view import device_slots

WHOLE = (1, 2, 3, 4)

Change = Callable[[Driver], object]


def split(driver: Driver) -> None:
    """The node is split into three."""
    for pages in (WHOLE[:1], WHOLE[:3]):
        driver.match(key_of(driver, [*pages, 9]), chunked=True)


def grow(driver: Driver) -> None:
    """A longer prompt is cached, and evicted from the device."""
    put(driver, [*WHOLE, 5])
    driver.drain()
    evict_all(driver)


def branch(driver: Driver) -> None:
    """A diverging prompt is cached, and evicted from the device."""
    put(driver, [*WHOLE[:2], 9])
    driver.drain()
    evict_all(driver)


def come_and_go(driver: Driver) -> None:
    """The prompt is loaded, and evicted from the device again."""
    driver.load(key_of(driver, WHOLE))
    evict_all(driver)


CHANGES = pytest.mark.parametrize("change", [split, grow, branch, come_and_go], ids=lambda change: change.__name__)


@clause("FLOW-5", "FLOW-10", page_sizes=[16])
@CHANGES
def test_a_handle_loads_the_whole_prompt_after_the_tree_changed(driver: Driver, change: Change) -> None:
    put_on_host(driver, WHOLE)
    key = key_of(driver, WHOLE)
    found = driver.match(key)
    change(driver)
    load = driver.load_back(key, found)
    assert load is not None, f"FLOW-5: all of {WHOLE} is on the host after {change.__name__}"
    driver.drain()
    delivered = driver.claim(load.ticket)
    tokens = len(WHOLE) * driver.config.page_size
    count = 0 if delivered is None else len(delivered)
    assert count == tokens, f"FLOW-5: {tokens} tokens were found, {count} were delivered after {change.__name__}"
    assert tier_hits(driver, WHOLE) == (4, 0), (
        f"FLOW-10: it is on the device: expected (4, 0), got {tier_hits(driver, WHOLE)}"
    )


@clause("FLOW-5", "FLOW-4", page_sizes=[16])
@CHANGES
@STAGES
def test_a_load_brings_the_whole_prompt_if_the_tree_changes_meanwhile(
    driver: Driver, stage: Stage, change: Change
) -> None:
    put_on_host(driver, WHOLE)
    load = queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    change(driver)
    driver.drain()
    assert driver.claim(load.ticket) is not None, (
        f"FLOW-5: no transfer failed after {change.__name__}: expected the slots of the load, got None"
    )
    assert tier_hits(driver, WHOLE) == (4, 0), (
        f"FLOW-10: it is on the device: expected (4, 0), got {tier_hits(driver, WHOLE)}"
    )


@clause("FLOW-5", page_sizes=[16])
def test_a_handle_of_a_node_that_left_both_tiers_is_refused(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    handle = driver.match(key_of(driver, WHOLE)).best_match
    evict_host(driver)
    _require_refusals(driver, handle, "left both tiers")
    put_on_host(driver, WHOLE)
    _require_refusals(driver, handle, "left both tiers, and was cached again")


@clause("FLOW-5", "EVICT-9", page_sizes=[16])
def test_a_handle_from_before_a_reset_is_refused(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    handle = driver.match(key_of(driver, WHOLE)).best_match
    driver.reset()
    _require_refusals(driver, handle, "was removed by a reset")
    put_on_host(driver, WHOLE)
    _require_refusals(driver, handle, "was removed by a reset, and was cached again")


@clause("FLOW-5", "HOST-5", page_sizes=[16])
def test_pages_computed_since_the_match_are_not_loaded(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    key = key_of(driver, WHOLE)
    found = driver.match(key)
    insert_fresh(driver, WHOLE)
    there = device_slots(driver, FULL)
    load = driver.adapter.load_back(found.best_match, quota=None)
    assert load is None, f"FLOW-5: it is on the device by now, and {load} was started"
    assert not transfer_views(driver, TransferKind.LOAD), "FLOW-5: nothing is to be loaded"
    assert device_slots(driver, FULL) == there, f"FLOW-5: {there} became {device_slots(driver, FULL)}"


@clause("FLOW-5", "FLOW-10", page_sizes=[16])
def test_a_load_brings_what_left_the_device_since_the_match(driver: Driver) -> None:
    put_on_both(driver, WHOLE[:2], WHOLE)
    key, size = key_of(driver, WHOLE), driver.config.page_size
    driver.evict(FULL, 1)
    found = driver.match(key)
    kept = len(found.device_indices) // size
    assert kept in (2, 3), f"EVICT-2: the end of the prompt leaves the device first, got {tier_hits(driver, WHOLE)}"
    evict_all(driver)
    load = driver.adapter.load_back(found.best_match, quota=None)
    assert load is not None, "FLOW-5: more left the device since the match, and all of it is on the host"
    assert len(load.indices) == 4 * size, f"FLOW-5: the device has none of it by now, {len(load.indices)} tokens come"
    driver.adapter.drain()
    driver.adapter.claim(load.ticket)
    assert tier_hits(driver, WHOLE) == (4, 0), (
        f"FLOW-10: it is on the device: expected (4, 0), got {tier_hits(driver, WHOLE)}"
    )


def _require_refusals(driver: Driver, handle: Handle, what: str) -> None:
    with refused(driver, "FLOW-5", f"a load of a node that {what}"):
        driver.adapter.load_back(handle, quota=None)
    with refused(driver, "FLOW-5", f"a host lock on a node that {what}"):
        driver.adapter.lock_host(handle)
    with refused(driver, "FLOW-5", f"a lock on a node that {what}"):
        driver.adapter.lock(handle)
