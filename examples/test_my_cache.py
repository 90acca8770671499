"""Clauses of the contract among a project's own tests: a class for some clauses, and a driver for a test of its own.

Run it with `pytest examples/test_my_cache.py`. Replace DictionaryAdapter by the adapter of your cache.
docs/reference/driver.md has the methods of the driver, and what each of them checks.
"""

from __future__ import annotations

import pytest

from hicache.testing import CacheContract
from hicache.testing.adapter import Capability
from hicache.testing.caches.dictionary import DictionaryAdapter
from hicache.testing.driving.driver import Driver
from hicache.testing.plugin.fixtures import OpenDriver

ADAPTER = DictionaryAdapter

by_verbs = pytest.mark.skipif(Capability.VERBS not in ADAPTER.capabilities, reason="the adapter has no VERBS")
by_requests = pytest.mark.skipif(Capability.REQUESTS not in ADAPTER.capabilities, reason="the adapter has no REQUESTS")


class TestMyCache(CacheContract):
    """The conformance tests of these clauses, and one more test, on each configuration of the adapter."""

    adapter = ADAPTER
    clauses = ("MATCH-*", "LOCK-1")

    @by_verbs
    def test_an_empty_cache_hits_nothing(self, driver: Driver) -> None:
        found = driver.match(driver.key(driver.prompt([1, 2, 3, 4])))
        assert len(found.device_indices) == 0, "nothing was inserted"


@by_verbs
def test_a_prompt_that_was_inserted_is_found(hicache_driver: OpenDriver) -> None:
    """The driver checks every law that the adapter shows, after each verb."""
    driver = hicache_driver(ADAPTER)
    key = driver.key(driver.prompt([1, 2]))
    driver.put(key)  # match, lock, allocate, write, insert, unlock
    assert len(driver.match(key).device_indices) == len(key.tokens), "all tokens hit"


@by_requests
def test_a_request_finds_what_an_earlier_one_computed(hicache_driver: OpenDriver) -> None:
    """The driver writes what a request computes, and reads what it found."""
    driver = hicache_driver(ADAPTER)
    for prompt, is_hit in (([1, 2], False), ([1, 2, 3], True)):
        admission = driver.admit(driver.key(driver.prompt(prompt)))
        assert admission is not None, "the cache is large enough"
        assert (admission.cached_tokens > 0) is is_hit, f"{prompt}: {admission.cached_tokens} tokens were cached"
        driver.finish(admission.request)  # compute the rest, and cache its whole pages
