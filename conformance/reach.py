"""How far a prompt of whole pages hits on each tier, in pages. It counts as no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hicache.testing.driving.driver import Driver
from hicache.types import SHARED, Handle, Namespace

from .verbs import key_of


class Reach(NamedTuple):
    """Pages that the device has, and those past them that are on the host alone."""

    device: int
    host: int


def reach(driver: Driver, pages: Sequence[int], namespace: Namespace = SHARED) -> Reach:
    """How far a prompt hits now."""
    found = driver.match(driver.key(driver.prompt(pages), namespace), chunked=True)
    size = driver.config.page_size
    return Reach(len(found.device_indices) // size, found.host_hit_length // size)


def best(driver: Driver, pages: Sequence[int]) -> Handle:
    """The node where a prompt ends that is cached as a whole, on whatever tier.

    FULL data that the device has past its anchor, where a state or a window is missing, is counted by no match: a
    prompt that has some is taken for one that is not cached as a whole.
    """
    found = driver.match(key_of(driver, pages), chunked=True)
    hit = (len(found.device_indices) + found.host_hit_length) // driver.config.page_size
    assert hit == len(pages), f"MATCH-1: {len(pages)} pages {tuple(pages)} are cached on some tier, {hit} were found"
    return found.best_match
