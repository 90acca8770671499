"""EVENT-1, EVENT-2, CONF-5: events and counters of storage match the objects in storage."""

from __future__ import annotations

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Component, Event, EventKind, Pool, StorageKind, Tier

from .scenario import FULL, evict_all, put
from .storage_scenes import (
    PAIR,
    PREFIXES,
    PROMPT,
    in_storage,
    pending_job,
    prefetch,
    put_in_storage,
    put_in_storage_alone,
    store,
)
from .tree_view import host_slots

NEEDS = [Capability.EVENTS, Capability.STORAGE, Capability.HOST, Capability.SNAPSHOT]
COUNTED = [Capability.COUNTERS, Capability.STORAGE]
POOL = {Component.FULL: Pool.KV, Component.SWA: Pool.SWA, Component.MAMBA: Pool.MAMBA}


def reported(driver: Driver, tier: Tier = Tier.STORAGE) -> list[Event]:
    """The events of a tier."""
    return [event for event in driver.adapter.events() if event.tier is tier]


def bytes_in_store(driver: Driver) -> int:
    """The number of bytes in the store."""
    return sum(map(len, store(driver).objects.values()))


@clause("EVENT-1", needs=[*NEEDS, Capability.STEPPED], write_policies=[WritePolicy.WRITE_THROUGH])
def test_nothing_is_reported_before_storage_has_it(driver: Driver) -> None:
    put(driver, PAIR)
    driver.step()
    driver.complete_all()
    pending = pending_job(driver, StorageKind.STORE)
    for _ in range(pending.batches):
        assert not reported(driver), f"EVENT-1: storage has not answered: expected no events, got {reported(driver)}"
        driver.advance_storage(pending.ticket)
    driver.step()
    events = {event.component for event in reported(driver)}
    assert events == set(driver.config.components), (
        f"EVENT-1: storage has all components: expected events of all, got {events}"
    )


@clause("EVENT-1", needs=NEEDS)
def test_blocks_that_are_reported_as_stored_are_in_storage(driver: Driver) -> None:
    put_in_storage(driver, *PREFIXES)
    for component in driver.config.components:
        events = {block for event in reported(driver) if event.component == component for block in event.blocks}
        there = in_storage(driver, PROMPT)[POOL[Component(component)]]
        assert len(events) == sum(there), (
            f"EVENT-1: {component}: expected {sum(there)} reported blocks, got {len(events)}"
        )


@clause("EVENT-1", needs=NEEDS)
def test_prefetched_blocks_are_reported_on_the_host(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    for component in driver.config.components:
        events = [event for event in reported(driver, Tier.HOST) if event.component == component]
        blocks = [block for event in events for block in event.blocks]
        assert all(event.kind is EventKind.STORED for event in events), f"EVENT-1: all is new on the host, got {events}"
        held = len(host_slots(driver, component))
        assert len(blocks) == len(set(blocks)) == held, (
            f"EVENT-1: expected events of {held} pages of {component}, got {events}"
        )


@clause("EVENT-1", "FLOW-12", needs=NEEDS)
def test_a_clear_is_reported(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
    before = len(reported(driver))
    assert driver.clear_storage(), "FLOW-12: nothing is under way"
    events = reported(driver)
    stored = {(event.component, block) for event in events[:before] for block in event.blocks}
    removed = {(event.component, block) for event in events[before:] for block in event.blocks}
    assert all(event.kind is EventKind.REMOVED for event in events[before:]), (
        f"EVENT-1: expected only removals after a clear, got {events[before:]}"
    )
    assert removed <= stored, f"EVENT-1: removed and never stored: {removed - stored}"
    assert removed == stored, f"EVENT-1: all nodes are in the tree still, and unreported is {stored - removed}"


@clause("EVENT-2", "CONF-5", needs=COUNTED)
def test_bytes_are_counted_in_each_direction_for_all_pools(driver: Driver) -> None:
    put_in_storage(driver, PROMPT)
    persisted, there = driver.adapter.counters()["bytes_stored"], bytes_in_store(driver)
    assert persisted == there, f"EVENT-2: expected {there} bytes to be counted as stored, got {persisted}"
    driver.restart()
    assert driver.adapter.counters()["bytes_prefetched"] == 0, "EVENT-2: nothing was prefetched yet: expected 0 bytes"
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: all of it is in storage"
    fetched, read = driver.adapter.counters()["bytes_prefetched"], bytes_read(driver)
    assert fetched == read, f"EVENT-2: expected {read} bytes to be counted as prefetched, got {fetched}"


@clause("EVENT-2", needs=COUNTED)
def test_a_prefetch_that_brings_nothing_counts_no_bytes(driver: Driver) -> None:
    put_in_storage_alone(driver, PAIR)
    put(driver, PAIR)
    evict_all(driver, FULL)
    driver.drain()
    assert prefetch(driver, PROMPT) == 0, "FETCH-4: past the pair nothing is in storage"
    counters = driver.adapter.counters()
    assert counters["bytes_prefetched"] == 0, f"EVENT-2: nothing came, counted are {counters['bytes_prefetched']} bytes"


def bytes_read(driver: Driver) -> int:
    """The number of bytes of all objects that were requested."""
    keys = [key for call in store(driver).calls if call.verb == "get" for key in call.keys]
    return sum(len(store(driver).objects[key]) for key in keys)
