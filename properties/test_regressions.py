"""Defects that the state machines found once, as short sequences of verbs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Component, Pool

from .small_caches import fixed_config

FULL, SWA, MAMBA = (component.value for component in Component)


@pytest.fixture
def opened() -> Iterator[list[CacheAdapter]]:
    """The caches that a test opens; they are closed at its end."""
    adapters: list[CacheAdapter] = []
    yield adapters
    for adapter in adapters:
        adapter.close()


def drive(
    opened: list[CacheAdapter],
    adapter_type: type[CacheAdapter],
    device: Mapping[str, int],
    host: Mapping[str, int],
    write_policy: WritePolicy,
) -> Driver:
    """A driver of a cache with pages of one token and a window of one page. `device`, `host`: pages of each pool."""
    config = fixed_config(device, host, write_policy, events=False)
    opened.append(adapter_type(config))
    return Driver(opened[-1], config)


@clause("EVICT-7", needs=(Capability.SNAPSHOT, Capability.SIZES, Capability.HOST, Capability.STEPPED, Capability.MAMBA))
def test_a_copy_of_the_parent_makes_room_for_one_of_its_child(
    opened: list[CacheAdapter], adapter_type: type[CacheAdapter]
) -> None:
    """The parent's state is evicted first, and its copy fills the host; the parent itself is still on the device."""
    driver = drive(opened, adapter_type, {FULL: 4, MAMBA: 2}, {FULL: 1, MAMBA: 1}, WritePolicy.WRITE_BACK)
    driver.put(driver.key([1]))
    driver.put(driver.key([1, 2]))
    result = driver.evict(MAMBA, 2)
    assert (result.freed[MAMBA], result.refused) == (2, 0), (
        f"EVICT-7: expected two states freed and no refusal, got {result}"
    )


@clause("HOST-6", needs=(Capability.SNAPSHOT, Capability.BYTES, Capability.HOST, Capability.STEPPED, Capability.SWA))
def test_a_second_load_reads_the_window_in_the_slots_of_an_insert(
    opened: list[CacheAdapter], adapter_type: type[CacheAdapter]
) -> None:
    """An insert gave the node slots without SWA data while it was loaded; a second load fills these."""
    driver = drive(opened, adapter_type, {FULL: 2, SWA: 2}, {FULL: 1, SWA: 1}, WritePolicy.WRITE_THROUGH)
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
