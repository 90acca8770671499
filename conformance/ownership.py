"""Ownership: what is cached, locked and free on both tiers, wherever the nodes are cut."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .arrivals import slots_under_way
from .host_trees import free_below, held_below, host_locks
from .pictures import holdings


def ownership(driver: Driver) -> tuple[object, ...]:
    """Plain values, so that before and after can be compared."""
    below = {component: held_below(driver, component) for component in driver.config.components}
    moving = [slots_under_way(driver, kind) for kind in TransferKind]
    return *holdings(driver.snapshot(), driver.config), below, host_locks(driver), free_below(driver), moving
