"""How many pages of a prompt of whole pages a match finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Handle, Namespace

from .scenario import key_of


class TierHits(NamedTuple):
    """Pages that are found on the device, and the pages after them that are on the host alone."""

    device: int
    host: int


def hit_pages(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> int:
    """Match a prompt, as a request that counts as a hit; the number of pages found on the device."""
    found = driver.match(driver.key(driver.prompt(pages), namespace))
    return len(found.device_indices) // driver.config.page_size


def tier_hits(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> TierHits:
    """The pages of a prompt that are found on each tier. The match is not counted as a hit."""
    found = driver.match(driver.key(driver.prompt(pages), namespace), chunked=True)
    size = driver.config.page_size
    return TierHits(len(found.device_indices) // size, found.host_hit_length // size)


def best_match(driver: Driver, pages: Sequence[int]) -> Handle:
    """The node at the end of a prompt that is cached in full, on either tier.

    No match counts FULL data on the device past the anchor, where a state or a window is missing: a prompt with such
    data is treated as not cached in full.
    """
    found = driver.match(key_of(driver, pages), chunked=True)
    hit = (len(found.device_indices) + found.host_hit_length) // driver.config.page_size
    assert hit == len(pages), f"MATCH-1: {tuple(pages)} is cached on some tier: expected {len(pages)} pages, got {hit}"
    return found.best_match
