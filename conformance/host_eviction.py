"""Eviction from the host."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver

from .cache_variants import host_config


def evict_host(driver: Driver, *components: str) -> None:
    """Evict from the host everything that can be evicted of these components, by default of all."""
    capacity_tokens = host_config(driver.config).capacity_tokens
    for component in components or driver.config.components:
        driver.evict_host(component, capacity_tokens[component])
