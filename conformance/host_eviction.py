"""Room made on the host."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver


def evict_host(driver: Driver, *components: str) -> None:
    """Evict all that can be evicted on the host of these components, or of every one."""
    host = driver.config.host
    assert host is not None, f"{driver.config.name} has a host tier"
    for component in components or driver.config.components:
        driver.evict_host(component, host.capacity_tokens[component])
