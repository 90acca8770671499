"""Clauses of the contract among a project's own tests: a class for some clauses, and a driver for a test of its own.

Run it with `pytest examples/test_my_cache.py`. Replace DictionaryAdapter by the adapter of your cache.
"""

from __future__ import annotations

import numpy as np

from hicache.config import CacheConfig
from hicache.testing import CacheContract
from hicache.testing.adapters.dictionary import DictionaryAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.own_drivers import OpenDriver
from hicache.types import SHARED, Key


def tokens(count: int) -> Key:
    """A prompt of that many tokens."""
    return Key(np.arange(count, dtype=np.int32), SHARED)


class TestMyCache(CacheContract):
    """The conformance tests of these clauses, and one more test, on each configuration of the adapter."""

    adapter = DictionaryAdapter
    clauses = ("MATCH-*", "LOCK-1")

    def test_an_empty_cache_hits_nothing(self, driver: Driver, config: CacheConfig) -> None:
        found = driver.match(tokens(4 * config.page_size))
        assert len(found.device_indices) == 0, "nothing was inserted"


def test_what_was_inserted_is_found(hicache_driver: OpenDriver) -> None:
    """The driver checks every law that the adapter shows, after each verb."""
    driver = hicache_driver(DictionaryAdapter)
    key = tokens(8)
    slots = driver.allocate(8)
    assert slots is not None, "the cache is empty"
    driver.insert(key, slots, shared=0)
    assert driver.match(key).device_indices.tolist() == slots.tolist(), "all tokens hit"
