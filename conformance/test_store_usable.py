"""STORE-2, STORE-3: missing or damaged objects are not prefetched, and all other usable pages are."""

from __future__ import annotations

from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool

from .scenario import put
from .storage_scenes import (
    PREFIXES,
    PROMPT,
    expected_pages,
    in_storage,
    object_keys,
    pools,
    prefetch,
    put_in_storage_alone,
    store,
)

LONG = (1, 2, 3, 4, 5, 6, 7)
"""A prompt so long that retrying with one page less each time would exceed the limit."""


def queries(driver: Driver) -> int:
    """The number of queries to storage."""
    return sum(call.verb == "exists" for call in store(driver).calls)


@clause("STORE-2", page_sizes=[16])
def test_without_any_one_object_the_longest_usable_prefix_is_prefetched(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    for pool in pools(driver):
        for page in range(len(PROMPT)):
            key = object_keys(driver, pool, PROMPT)[page]
            content = store(driver).objects.pop(key)
            expected, came = expected_pages(driver, PROMPT), prefetch(driver, PROMPT)
            assert came == expected, f"STORE-2: without page {page} of {pool.value} {expected} pages, {came} came"
            store(driver).objects[key] = content
            driver.reset()


@clause("STORE-2", page_sizes=[16])
def test_without_any_two_objects_the_longest_usable_prefix_is_prefetched(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    names = [(pool, page) for pool in pools(driver) for page in range(1, len(PROMPT))]
    pairs = [(one, other) for place, one in enumerate(names) for other in names[place + 1 :]]
    for pair in pairs:
        keys = [object_keys(driver, pool, PROMPT)[page] for pool, page in pair]
        contents = {key: store(driver).objects.pop(key) for key in keys}
        expected, came = expected_pages(driver, PROMPT), prefetch(driver, PROMPT)
        assert came == expected, f"STORE-2: without {pair} {expected} pages can be used, {came} came"
        store(driver).restore(contents)
        driver.reset()


@clause("STORE-2", page_sizes=[16])
def test_one_query_asks_all_pools_for_the_usable_prefix(driver: Driver) -> None:
    put_in_storage_alone(driver, LONG[:1], LONG)
    kept = dict(store(driver).objects)
    for pool in pools(driver)[1:]:
        driver.reset()
        for key in object_keys(driver, pool, LONG)[1:]:
            store(driver).objects.pop(key, None)
        asked = queries(driver)
        came = prefetch(driver, LONG)
        assert came == 1, f"STORE-2: {pool.value} has the first page of {len(LONG)} alone, {came} pages came"
        assert queries(driver) == asked + 1, f"STORE-2: storage says so at once, it was asked {queries(driver) - asked}"
        store(driver).restore(kept)


@clause("STORE-3", "FETCH-4", page_sizes=[16])
def test_a_damaged_object_is_a_miss(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    contents = dict(store(driver).objects)
    for pool in pools(driver):
        for page in range(len(PROMPT)):
            store(driver).corrupt([object_keys(driver, pool, PROMPT)[page]], "corrupt")
            expected, came = expected_pages(driver, PROMPT), prefetch(driver, PROMPT)
            assert came == expected, (
                f"STORE-3: page {page} of {pool.value} is damaged, {expected} pages can be used, {came} came"
            )
            store(driver).restore(contents)
            driver.reset()


@clause("STORE-3", page_sizes=[16])
def test_an_object_of_another_length_is_a_miss(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    key = object_keys(driver, Pool.KV, PROMPT)[2]
    content = store(driver).objects[key]
    for damaged in (content[:-1], content + b"\0", b""):
        store(driver).objects[key] = damaged
        came = prefetch(driver, PROMPT)
        assert came == 2, f"STORE-3: the third page has {len(damaged)} of {len(content)} bytes, {came} pages came"
        driver.reset()


@clause("STORE-3", "FETCH-9", page_sizes=[16])
def test_a_damaged_object_is_written_again_after_recomputation(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    whole = {pool: object_keys(driver, pool, PROMPT) for pool in pools(driver)}
    for pool, keys in whole.items():
        there = [key for key in keys if key in store(driver).objects]
        store(driver).corrupt(there[-1:])
        came = prefetch(driver, PROMPT)
        assert came < len(PROMPT), f"STORE-3: the last page of {pool.value} is gone, and {came} pages came"
        put(driver, PROMPT)
        driver.evict("full", driver.config.capacity_tokens["full"])
        driver.drain()
        driver.restart()
        came = prefetch(driver, PROMPT)
        assert came == len(PROMPT), (
            f"STORE-3: {pool.value} was computed again, {in_storage(driver, PROMPT)} is there, {came} pages came"
        )
        driver.restart()


@clause("STORE-3", page_sizes=[16])
def test_a_backend_that_raises_counts_as_a_miss_or_a_refusal(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    for verb in ("exists", "get"):
        store(driver).faults.raising = {verb}
        came = prefetch(driver, PROMPT)
        assert came == 0, f"STORE-3: {verb} raises, so that nothing is there, yet {came} pages came"
    store(driver).faults.raising = {"set"}
    other = (7, 8)
    put(driver, other)
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    assert not any(in_storage(driver, other)[Pool.KV]), "STORE-3: set raises, so that nothing was kept"
    store(driver).faults.raising = set()
    came = prefetch(driver, PROMPT)
    assert came == len(PROMPT), f"STORE-3: nothing raises any more, {len(PROMPT)} pages are there, {came} came"


@clause("STORE-5", page_sizes=[16])
def test_objects_in_storage_are_not_written_again(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    before = dict(store(driver).objects)
    put(driver, PROMPT)
    driver.evict("full", driver.config.capacity_tokens["full"])
    driver.drain()
    after = store(driver).objects
    changed = [key for key, content in before.items() if after.get(key) is not content]
    assert not changed, f"STORE-5: the objects are in storage: expected none to be written again, got {changed}"
