"""Actions that every rank does at the same time."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.config import CacheConfig
from hicache.testing.ranks.driver import RankDriver
from hicache.testing.storage.scripted import Store, store_of
from hicache.types import Key, Tier


def key_of(driver: RankDriver, pages: Sequence[int]) -> Key:
    """The key of a prompt of these pages."""
    return driver.key(driver.prompt(pages))


def own_store(config: CacheConfig) -> Store:
    """The scripted store of a rank."""
    store = store_of(config)
    assert store is not None, f"{config.name} keeps its pages where a test can see them"
    return store


def advance_jobs(driver: RankDriver, batches: int) -> None:
    """Let each storage job do so many batches."""
    for one in driver.pending_storage():
        for _ in range(min(batches, one.batches - one.batches_done)):
            if any(one.ticket == other.ticket for other in driver.pending_storage()):
                driver.advance_storage(one.ticket)


def evict_on(driver: RankDriver, tier: Tier, component: str, tokens: int) -> object:
    """Evict on a tier; returns what was freed, and what was refused."""
    result = driver.evict(component, tokens) if tier is Tier.DEVICE else driver.evict_host(component, tokens)
    return result.freed, result.refused


def evict_both_tiers(driver: RankDriver) -> None:
    """Evict both tiers. What leaves the device is stored before it leaves the host."""
    assert driver.config.host is not None, f"{driver.config.name} has a host tier"
    for component in driver.config.components:
        driver.evict(component, driver.config.capacity_tokens[component])
    driver.drain()
    for component in driver.config.components:
        driver.evict_host(component, driver.config.host.capacity_tokens[component])


def require_empty(driver: RankDriver) -> None:
    """FLOW-7: when everything was released, all slots of both tiers are free."""
    snapshot = driver.snapshot()
    assert snapshot.host is not None, f"{driver.config.name} has a host tier"
    for where, pools in (("device", snapshot.pools), ("host", snapshot.host.pools)):
        taken = {name: pool.capacity - len(pool.free) for name, pool in pools.items()}
        assert not any(taken.values()), (
            f"FLOW-7: expected no taken slots on the {where} of rank {driver.rank}, got {taken}"
        )
