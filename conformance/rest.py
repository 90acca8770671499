"""A cache at rest: nothing is under way, nobody holds anything, and all that it has can be given back."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver
from hicache.types import Tier

from .host_eviction import evict_host
from .host_trees import device_locks, free_below, host_locks, pins
from .hosts import host_of
from .trees import nodes
from .under_way import free_on_device
from .verbs import evict_all


def require_rest(driver: Driver, when: str) -> None:
    """Nothing is left of what went before: no lock, no pin, no transfer, no kept slot. Both tiers can be emptied."""
    driver.drain()
    require_nothing_held(driver, when)
    evict_all(driver)
    evict_host(driver)
    left = nodes(driver).keys()
    assert not left, f"FLOW-7: {when}: nobody holds anything, and {left} cannot be evicted"
    require_all_free(driver, when)


def require_nothing_held(driver: Driver, when: str) -> None:
    """Every lock is released, every queue empty, and no slot is kept."""
    host = driver.snapshot().host
    assert host is not None, f"{driver.config.name} has a host tier"
    locks = {"device": device_locks(driver), "host": host_locks(driver)}
    own = {tier.value: pins(driver, tier) for tier in (Tier.DEVICE, Tier.HOST)}
    kept = {component: slots.tolist() for component, slots in host.kept.items() if len(slots)}
    assert not any(locks.values()), f"FLOW-7: {when}: locks {locks} are left"
    assert not any(own.values()), f"FLOW-7: {when}: the cache's own locks {own} are left"
    under_way = [*host.transfers, *driver.pending()]
    assert not under_way, f"FLOW-7: {when}: {under_way} is under way"
    assert not kept, f"FLOW-7: {when}: {kept} is kept for nobody"


def require_all_free(driver: Driver, when: str) -> None:
    """Every slot of both tiers is free, and counted as free."""
    tiers = {
        Tier.DEVICE: (driver.config.capacity_tokens, free_on_device(driver)),
        Tier.HOST: (host_of(driver.config).capacity_tokens, free_below(driver)),
    }
    for tier, (capacity, free) in tiers.items():
        assert free == capacity, f"FLOW-7: {when}: of {capacity} on the {tier.value}, {free} is free"
        for name, sizes in driver.sizes(tier).items():
            counted = sizes.evictable, sizes.protected, sizes.free
            expected = 0, 0, capacity[name]
            assert counted == expected, f"FLOW-7: {when}: {name} on the {tier.value} is counted as {sizes}"
