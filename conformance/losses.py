"""A prefix that is on both tiers but for one component, which the device lost."""

from __future__ import annotations

from hicache.testing.driving.driver import Driver

from .residences import put_on_both
from .tombstones import TOMBSTONE, longer_prompt
from .trees import held
from .verbs import evict_all, lock


def lose_on_device(driver: Driver, component: str) -> None:
    """Cache the longer prompt on both tiers, and let the device lose a component of its first two pages."""
    put_on_both(driver, TOMBSTONE, longer_prompt(driver))
    receipt = lock(driver, longer_prompt(driver))
    evict_all(driver, component)
    driver.unlock(receipt)
    assert TOMBSTONE not in held(driver, component), f"EVICT-3: {component} of {TOMBSTONE} was unlocked, and is there"
