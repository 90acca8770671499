"""A cache in which nothing is under way and nobody holds anything."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.driving.driver import Driver
from hicache.types import Tier

from .host_eviction import evict_host
from .host_trees import device_locks, free_below, host_locks, pins
from .hosts import host_of
from .trees import nodes
from .under_way import free_on_device
from .verbs import FULL


def require_quiet(driver: Driver) -> None:
    """No lock, no pin, no transfer, nothing kept, nothing protected on either tier."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    assert not driver.running, f"FLOW-7: {len(driver.running)} requests still run"
    assert not host.transfers, f"FLOW-7: all was drained, and {host.transfers} is under way"
    kept = {name: slots.tolist() for name, slots in host.kept.items() if len(slots)}
    assert not kept, f"FLOW-7: nobody waits for a load, and {kept} is kept"
    locks = device_locks(driver), host_locks(driver), pins(driver, Tier.DEVICE), pins(driver, Tier.HOST)
    assert not any(locks), f"FLOW-7: locks on the device and the host, pins on the device and the host: {locks}"
    if Capability.SIZES in driver.adapter.capabilities:
        for tier in (Tier.DEVICE, Tier.HOST):
            protected = {name: sizes.protected for name, sizes in driver.sizes(tier).items() if sizes.protected}
            assert not protected, f"FLOW-7: nobody holds anything, protected on the {tier.value} are {protected}"


def require_empty(driver: Driver) -> None:
    """All that is cached can be evicted, and then every slot of both tiers is free."""
    require_quiet(driver)
    # With write_back the host may be full of what one call copied there, so that the rest goes with the next call.
    while driver.evict(FULL, driver.config.capacity_tokens[FULL]).victims:
        continue
    evict_host(driver)
    left = nodes(driver).keys()
    assert not left, f"FLOW-7: nobody holds anything, and {left} cannot be evicted"
    free, capacity = free_on_device(driver), driver.config.capacity_tokens
    assert free == capacity, f"POOL-1: the device has {capacity}, free are {free}"
    below, host_capacity = free_below(driver), host_of(driver.config).capacity_tokens
    assert below == host_capacity, f"POOL-1: the host has {host_capacity}, free are {below}"
