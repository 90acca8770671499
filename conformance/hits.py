"""How far a prompt of whole pages hits, in pages."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Namespace


def hit_pages(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
    """Match a prompt of these pages; how many of them were found."""
    found = driver.match(driver.key(driver.prompt(pages), namespace))
    return len(found.device_indices) // driver.config.page_size
