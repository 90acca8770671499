"""FLOW-1, HOST-5: a load that must evict, back up and evict on the host within its own call."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .host_trees import held_below
from .hosts import another, room
from .reach import best, reach
from .residences import put_on_host
from .trees import held
from .under_way import start_load
from .verbs import FULL, evict_all, key_of, lock, put

WANTED, OTHER = (1, 2), (8, 9)
NEWER = ((3, 4), (5, 6))
BACK = [WritePolicy.WRITE_BACK]


@clause("FLOW-1", "EVICT-7", write_policies=BACK)
def test_a_load_evicts_and_backs_up_and_its_own_source_stays(driver: Driver) -> None:
    config = driver.config
    with another(driver, capacity_tokens=room(config, 4, 2), host={"capacity_tokens": room(config, 4, 2)}) as tiny:
        put_on_host(tiny, WANTED, OTHER)
        for pages in NEWER:
            put(tiny, pages)
        load = start_load(tiny, WANTED)
        tiny.drain()
        assert tiny.claim(load.ticket) is not None, "FLOW-10: the load went well"
        found = {pages: reach(tiny, pages) for pages in (WANTED, OTHER, *NEWER)}
        expected = {WANTED: (2, 0), OTHER: (0, 0), NEWER[0]: (0, 2), NEWER[1]: (2, 0)}
        assert found == expected, f"FLOW-1: the older prompt makes room, what is read stays: {expected}, got {found}"


@clause("FLOW-1", "EVICT-7", "HOST-5", write_policies=BACK)
def test_a_load_is_refused_when_only_its_own_source_could_make_room(driver: Driver) -> None:
    config = driver.config
    with another(driver, capacity_tokens=room(config, 4, 2), host={"capacity_tokens": room(config, 2, 1)}) as tiny:
        put_on_host(tiny, WANTED)
        for pages in NEWER:
            put(tiny, pages)
        key = key_of(tiny, WANTED)
        assert tiny.load_back(key, tiny.match(key)) is None, "HOST-5: there is no room for the load on either tier"
        found = {pages: reach(tiny, pages) for pages in (WANTED, *NEWER)}
        expected = {WANTED: (0, 2), NEWER[0]: (2, 0), NEWER[1]: (2, 0)}
        assert found == expected, f"EVICT-7: what cannot be backed up stays where it is: {expected}, got {found}"


@clause("FLOW-1", "EVICT-7", write_policies=BACK)
def test_a_sweep_over_two_nodes_does_not_write_both_to_one_place(driver: Driver) -> None:
    config = driver.config
    with another(driver, host={"capacity_tokens": room(config, 2, 1)}) as tiny:
        for pages in NEWER:
            put(tiny, pages)
        result = tiny.evict(FULL, config.capacity_tokens[FULL])
        on_device = [pages for pages in NEWER if reach(tiny, pages) == (2, 0)]
        on_host = [pages for pages in NEWER if reach(tiny, pages) == (0, 2)]
        assert len(on_host) == 1, f"EVICT-7: the host has room for one of {NEWER}, it has {on_host}"
        assert result.refused == len(on_device), f"EVICT-7: {on_device} stayed on the device, the result is {result}"
        tiny.verify_state(key_of(tiny, on_host[0]), tiny.load(key_of(tiny, on_host[0])))


@clause("FLOW-1", "HOST-2", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_backup_does_not_take_the_place_of_what_is_being_loaded(driver: Driver) -> None:
    config = driver.config
    with another(driver, host={"capacity_tokens": room(config, 2, 1)}) as tiny:
        put_on_host(tiny, WANTED)
        source = held_below(tiny, FULL)
        load = start_load(tiny, WANTED)
        put(tiny, OTHER)
        tiny.step()
        assert held_below(tiny, FULL) == source, f"FLOW-1: a load reads {source}, got {held_below(tiny, FULL)}"
        tiny.drain()
        assert tiny.claim(load.ticket) is not None, "FLOW-10: the load went well"
        found = reach(tiny, WANTED), reach(tiny, OTHER)
        assert found == ((2, 0), (2, 0)), f"HOST-2: a backup that is refused costs nothing on the device: {found}"


@clause("FLOW-1", "FLOW-5", page_sizes=[16])
def test_the_device_part_of_a_path_stays_while_the_rest_is_loaded(driver: Driver) -> None:
    put_on_host(driver, WANTED[:1], WANTED)
    driver.load(key_of(driver, WANTED[:1]))
    anchor = held(driver, FULL)
    load = start_load(driver, WANTED)
    evict_all(driver)
    assert held(driver, FULL) == anchor, f"FLOW-5: {anchor} anchors a load, the device has {held(driver, FULL)}"
    driver.drain()
    receipt = driver.lock(best(driver, WANTED))
    driver.claim(load.ticket)
    driver.unlock(receipt)
    evict_all(driver)
    assert reach(driver, WANTED) == (0, 2), f"FLOW-7: nothing holds it on the device any more: {reach(driver, WANTED)}"


@clause("FLOW-5", "EVICT-7", write_policies=BACK)
def test_what_anchors_a_load_from_the_host_is_on_the_device_alone(driver: Driver) -> None:
    for pages in (WANTED[:1], WANTED):
        put(driver, pages)
    receipt = lock(driver, WANTED[:1])
    evict_all(driver)
    driver.unlock(receipt)
    assert reach(driver, WANTED) == (1, 1), f"EVICT-7: page 2 alone could go to the host, got {reach(driver, WANTED)}"
    load = start_load(driver, WANTED)
    evict_all(driver)
    assert reach(driver, WANTED) == (1, 1), f"FLOW-5: page 1 anchors a load, got {reach(driver, WANTED)}"
    driver.drain()
    driver.claim(load.ticket)
    assert reach(driver, WANTED) == (2, 0), f"FLOW-10: page 2 was loaded below page 1, got {reach(driver, WANTED)}"
    evict_all(driver)
    assert reach(driver, WANTED) == (0, 2), f"FLOW-8: each page is on the host now, got {reach(driver, WANTED)}"
