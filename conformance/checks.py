"""Checks: nothing is left of locks, transfers and slots, and a caller's mistake is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hicache.config import ExecutorKind
from hicache.testing.adapter import Capability
from hicache.testing.driving.driver import Driver
from hicache.types import Tier, TransferKind

from .scenario import FULL, evict_host, host_config
from .tree_view import device_locks, free_device_slots, free_host_slots, host_locks, locks, nodes, pins, snapshot_values


def require_idle(driver: Driver, when: str) -> None:
    """FLOW-7: no request runs, no transfer is under way, nothing is locked, pinned or kept for a reader."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    assert not driver.running, f"FLOW-7: {when}: expected no running request, got {len(driver.running)}"
    held = {"device": device_locks(driver), "host": host_locks(driver)}
    assert not any(held.values()), f"FLOW-7: {when}: expected no locks, got {held}"
    pinned = {tier.value: pins(driver, tier) for tier in (Tier.DEVICE, Tier.HOST)}
    assert not any(pinned.values()), f"FLOW-7: {when}: expected no pins of the cache's own transfers, got {pinned}"
    is_stepped = host_config(driver.config).executor is ExecutorKind.STEPPED
    under_way = [*host.transfers, *(driver.pending(*TransferKind) if is_stepped else ())]
    assert not under_way, f"FLOW-7: {when}: expected no transfer under way, got {under_way}"
    kept = {component: slots.tolist() for component, slots in host.kept.items() if len(slots)}
    assert not kept, f"FLOW-7: {when}: expected no slots kept for readers, got {kept}"
    if Capability.SIZES in driver.adapter.capabilities:
        for tier in (Tier.DEVICE, Tier.HOST):
            protected = {name: sizes.protected for name, sizes in driver.sizes(tier).items() if sizes.protected}
            assert not protected, f"FLOW-7: {when}: expected nothing protected on the {tier.value}, got {protected}"


def require_all_evictable(driver: Driver, when: str) -> None:
    """FLOW-7: after a drain the cache is idle, and eviction frees every slot of both tiers."""
    driver.drain()
    require_idle(driver, when)
    # With write_back the host may be full of what one call copied there, so that the rest goes with the next call.
    while driver.evict(FULL, driver.config.capacity_tokens[FULL]).victims:
        continue
    # What was copied there is then stored.
    driver.drain()
    evict_host(driver)
    left = nodes(driver).keys()
    assert not left, f"FLOW-7: {when}: nothing is locked: expected an empty tree after eviction, got {left}"
    require_all_free(driver, when)


def require_all_free(driver: Driver, when: str) -> None:
    """POOL-1: every slot of both tiers is free, and the size counters say so."""
    tiers = {
        Tier.DEVICE: (driver.config.capacity_tokens, free_device_slots(driver)),
        Tier.HOST: (host_config(driver.config).capacity_tokens, free_host_slots(driver)),
    }
    for tier, (capacity, free) in tiers.items():
        assert free == capacity, f"POOL-1: {when}: expected {capacity} free slots on the {tier.value}, got {free}"
        for name, sizes in driver.sizes(tier).items() if Capability.SIZES in driver.adapter.capabilities else ():
            counted = sizes.evictable, sizes.protected, sizes.free
            expected = 0, 0, capacity[name]
            assert counted == expected, (
                f"FLOW-7: {when}: {name} on the {tier.value}: expected (evictable, protected, free) {expected}, "
                f"got {sizes}"
            )


def require_requests_released(driver: Driver, when: str) -> None:
    """REQ-2: no request holds a lock or a slot: each slot of the device is free or can be evicted."""
    assert not driver.running, f"REQ-2: {when}: expected no running request, got {len(driver.running)}"
    left = locks(driver)
    assert not left, f"REQ-2: {when}: expected no locks, got {left}"
    for component, sizes in driver.adapter.sizes().items():
        capacity = driver.config.capacity_tokens[component]
        assert sizes.free + sizes.evictable == capacity, (
            f"REQ-2: {when}: expected all {capacity} slots of {component} to be free or evictable, got {sizes}"
        )


REFUSALS = (ValueError, LookupError, AssertionError)
"""The errors that count as a refusal. Those of this package are among them."""


@contextmanager
def refused(driver: Driver, clause_id: str, mistake: str) -> Iterator[None]:
    """The block calls the adapter directly; it must raise and change nothing. Skips without REFUSALS."""
    if Capability.REFUSALS not in driver.adapter.capabilities:
        pytest.skip(f"{type(driver.adapter).__name__} does not declare REFUSALS: {Capability.REFUSALS.value}")
    before = snapshot_values(driver.snapshot())
    try:
        yield
    except REFUSALS:
        after = snapshot_values(driver.snapshot())
        assert after == before, f"{clause_id}: {mistake} was refused, but the cache changed from {before} to {after}"
        driver.check()
    else:
        pytest.fail(f"{clause_id}: expected one of {REFUSALS} for {mistake}, but it was accepted")
