"""FLOW-1, HOST-5: a load that must evict on the device, back up, and evict on the host within one call."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .scenario import FULL, best_match, capacity_for, evict_all, host_variant, key_of, lock, put, put_on_host, tier_hits
from .transfers import start_load
from .tree_view import device_slots, host_slots

WANTED, OTHER = (1, 2), (8, 9)
NEWER = ((3, 4), (5, 6))
BACK = [WritePolicy.WRITE_BACK]


@clause("FLOW-1", "EVICT-7", write_policies=BACK)
def test_a_load_that_evicts_and_backs_up_keeps_its_own_source(driver: Driver) -> None:
    config = driver.config
    with host_variant(
        driver, capacity_tokens=capacity_for(config, 4, 2), host={"capacity_tokens": capacity_for(config, 4, 2)}
    ) as tiny:
        put_on_host(tiny, WANTED, OTHER)
        for pages in NEWER:
            put(tiny, pages)
        load = start_load(tiny, WANTED)
        tiny.drain()
        assert tiny.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
        found = {pages: tier_hits(tiny, pages) for pages in (WANTED, OTHER, *NEWER)}
        expected = {WANTED: (2, 0), OTHER: (0, 0), NEWER[0]: (0, 2), NEWER[1]: (2, 0)}
        assert found == expected, f"FLOW-1: the older prompt makes room, what is read stays: {expected}, got {found}"


@clause("FLOW-1", "EVICT-7", "HOST-5", write_policies=BACK)
def test_a_load_is_refused_when_only_its_own_source_could_make_room(driver: Driver) -> None:
    config = driver.config
    with host_variant(
        driver, capacity_tokens=capacity_for(config, 4, 2), host={"capacity_tokens": capacity_for(config, 2, 1)}
    ) as tiny:
        put_on_host(tiny, WANTED)
        for pages in NEWER:
            put(tiny, pages)
        key = key_of(tiny, WANTED)
        assert tiny.load_back(key, tiny.match(key)) is None, "HOST-5: there is no room for the load on either tier"
        found = {pages: tier_hits(tiny, pages) for pages in (WANTED, *NEWER)}
        expected = {WANTED: (0, 2), NEWER[0]: (2, 0), NEWER[1]: (2, 0)}
        assert found == expected, f"EVICT-7: what cannot be backed up stays where it is: {expected}, got {found}"


@clause("FLOW-1", "EVICT-7", write_policies=BACK)
def test_an_eviction_of_two_nodes_does_not_back_both_up_to_the_same_slots(driver: Driver) -> None:
    config = driver.config
    with host_variant(driver, host={"capacity_tokens": capacity_for(config, 2, 1)}) as tiny:
        for pages in NEWER:
            put(tiny, pages)
        result = tiny.evict(FULL, config.capacity_tokens[FULL])
        on_device = [pages for pages in NEWER if tier_hits(tiny, pages) == (2, 0)]
        on_host = [pages for pages in NEWER if tier_hits(tiny, pages) == (0, 2)]
        assert len(on_host) == 1, f"EVICT-7: the host has room for one of {NEWER}, it has {on_host}"
        assert result.refused == len(on_device), f"EVICT-7: {on_device} stayed on the device, the result is {result}"
        tiny.verify_state(key_of(tiny, on_host[0]), tiny.load(key_of(tiny, on_host[0])))


@clause("FLOW-1", "HOST-2", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_backup_does_not_evict_the_source_of_a_load(driver: Driver) -> None:
    config = driver.config
    with host_variant(driver, host={"capacity_tokens": capacity_for(config, 2, 1)}) as tiny:
        put_on_host(tiny, WANTED)
        source = host_slots(tiny, FULL)
        load = start_load(tiny, WANTED)
        put(tiny, OTHER)
        tiny.step()
        assert host_slots(tiny, FULL) == source, f"FLOW-1: a load reads {source}, got {host_slots(tiny, FULL)}"
        tiny.drain()
        assert tiny.claim(load.ticket) is not None, "FLOW-10: nothing failed: expected the slots of the load, got None"
        found = tier_hits(tiny, WANTED), tier_hits(tiny, OTHER)
        assert found == ((2, 0), (2, 0)), f"HOST-2: a backup that is refused costs nothing on the device: {found}"


@clause("FLOW-1", "FLOW-5", page_sizes=[16])
def test_the_device_anchor_stays_while_the_rest_is_loaded(driver: Driver) -> None:
    put_on_host(driver, WANTED[:1], WANTED)
    driver.load(key_of(driver, WANTED[:1]))
    anchor = device_slots(driver, FULL)
    load = start_load(driver, WANTED)
    evict_all(driver)
    assert device_slots(driver, FULL) == anchor, (
        f"FLOW-5: {anchor} anchors a load, the device has {device_slots(driver, FULL)}"
    )
    driver.drain()
    receipt = driver.lock(best_match(driver, WANTED))
    driver.claim(load.ticket)
    driver.unlock(receipt)
    evict_all(driver)
    assert tier_hits(driver, WANTED) == (0, 2), (
        f"FLOW-7: nothing holds it on the device any more: {tier_hits(driver, WANTED)}"
    )


@clause("FLOW-5", "EVICT-7", write_policies=BACK)
def test_an_anchor_without_a_host_copy_stays_during_a_load(driver: Driver) -> None:
    for pages in (WANTED[:1], WANTED):
        put(driver, pages)
    receipt = lock(driver, WANTED[:1])
    evict_all(driver)
    driver.unlock(receipt)
    assert tier_hits(driver, WANTED) == (1, 1), (
        f"EVICT-7: page 2 alone could go to the host: expected (1, 1), got {tier_hits(driver, WANTED)}"
    )
    load = start_load(driver, WANTED)
    evict_all(driver)
    assert tier_hits(driver, WANTED) == (1, 1), (
        f"FLOW-5: page 1 anchors a load: expected (1, 1), got {tier_hits(driver, WANTED)}"
    )
    driver.drain()
    driver.claim(load.ticket)
    assert tier_hits(driver, WANTED) == (2, 0), (
        f"FLOW-10: page 2 was loaded below page 1: expected (2, 0), got {tier_hits(driver, WANTED)}"
    )
    evict_all(driver)
    assert tier_hits(driver, WANTED) == (0, 2), (
        f"FLOW-8: each page is on the host now: expected (0, 2), got {tier_hits(driver, WANTED)}"
    )
