"""How far a prompt of whole pages hits, in pages."""

from __future__ import annotations

from collections.abc import Sequence

from hicache.testing.driver import Driver
from hicache.types import SHARED, Namespace


def hit_pages(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
    """Match a prompt of these pages; how many of them were found."""
    found = driver.match(driver.key(driver.prompt(pages), namespace))
    return len(found.device_indices) // driver.config.page_size


def put_pages(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> None:
    """Cache each prefix of these pages, the shortest first, so that with MAMBA each has its state."""
    for count in range(1, len(pages) + 1):
        driver.put(driver.key(driver.prompt(pages[:count]), namespace))
