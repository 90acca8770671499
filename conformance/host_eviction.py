"""Room made on the host."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver

from .hosts import host_of


def evict_host(driver: Driver, *components: str) -> None:
    """Evict all that can be evicted on the host of these components, or of every one."""
    capacity_tokens = host_of(driver.config).capacity_tokens
    for component in components or driver.config.components:
        driver.evict_host(component, capacity_tokens[component])
