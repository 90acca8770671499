"""Defects that the state machines found once, as short sequences of verbs."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.plugin.fixtures import OpenDriver
from hicache.types import Component, Pool

from .small_caches import fixed_config

FULL, SWA, MAMBA = (component.value for component in Component)


@clause("EVICT-7", needs=(Capability.SNAPSHOT, Capability.SIZES, Capability.HOST, Capability.STEPPED, Capability.MAMBA))
def test_a_copy_of_the_parent_makes_room_for_one_of_its_child(hicache_driver: OpenDriver) -> None:
    """The parent's state is evicted first, and its copy fills the host; the parent itself is still on the device."""
    # Pages of one token, and a window of one page; by component the pages on the device and on the host.
    config = fixed_config({FULL: 4, MAMBA: 2}, {FULL: 1, MAMBA: 1}, WritePolicy.WRITE_BACK, events=False)
    driver = hicache_driver(config=config)
    driver.put(driver.key([1]))
    driver.put(driver.key([1, 2]))
    result = driver.evict(MAMBA, 2)
    assert (result.freed[MAMBA], result.refused) == (2, 0), (
        f"EVICT-7: expected two states freed and no refusal, got {result}"
    )


@clause("HOST-6", needs=(Capability.SNAPSHOT, Capability.BYTES, Capability.HOST, Capability.STEPPED, Capability.SWA))
def test_a_second_load_reads_the_window_in_the_slots_of_an_insert(hicache_driver: OpenDriver) -> None:
    """An insert gave the node slots without SWA data while it was loaded; a second load fills these."""
    config = fixed_config({FULL: 2, SWA: 2}, {FULL: 1, SWA: 1}, WritePolicy.WRITE_THROUGH, events=False)
    driver = hicache_driver(config=config)
    key = driver.key([1])
    driver.put(key)
    driver.drain()
    driver.evict(FULL, 1)
    assert driver.load_back(key, driver.match(key)), "HOST-4: the prompt is on the host alone"
    driver.put(key, window_start=1)
    second = driver.load_back(key, driver.match(key))
    assert second, "HOST-4: the window is on the host alone"
    driver.step()
    driver.complete(driver.pending()[0].ticket)
    driver.read_ready_layers(second.ticket)
    driver.step()
    ready = driver.read_ready_layers(second.ticket)[Pool.SWA]
    assert ready == driver.adapter.layers(Pool.SWA), (
        f"HOST-9: all layers of the window have moved: expected them to be ready, got {ready}"
    )
