"""FETCH-5, FETCH-6: the other pools are read after KV, for the prefix of KV that was read."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool, StorageKind

from .scenario import FULL, MAMBA, SWA, key_of, window_pages
from .storage_scenes import (
    PREFIXES,
    PROMPT,
    begin_prefetch,
    complete_job,
    object_keys,
    pending_job,
    pools,
    prefetch,
    prefetch_without,
    prefetched_pages,
    put_in_storage_alone,
    slots_held_by_prefetches,
    store,
)
from .tree_view import host_slots

STEPPED = [Capability.STEPPED_STORAGE]
INDEXER = "indexer"


def reads(driver: Driver) -> list[tuple[Pool, list[int]]]:
    """The pages of the prompt that each call of get requested."""
    places = {key: (pool, page) for pool in pools(driver) for page, key in enumerate(object_keys(driver, pool, PROMPT))}
    asked_for = [[places[key] for key in call.keys] for call in store(driver).calls if call.verb == "get"]
    return [(named[0][0], [page for _, page in named]) for named in asked_for]


@clause("FETCH-5", page_sizes=[16])
def test_kv_is_read_first_and_the_other_pools_for_the_prefix_that_was_read(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    assert prefetch(driver, (*PROMPT[:3], 9)) == 3, "FETCH-4: three pages are in storage"
    window = list(range(max(0, 3 - window_pages(driver.config)), 3))
    wanted = {Pool.KV: [0, 1, 2], Pool.INDEXER: [0, 1, 2], Pool.SWA: window, Pool.MAMBA: [2]}
    expected = [(pool, wanted[pool]) for pool in (Pool.KV, Pool.INDEXER, Pool.SWA, Pool.MAMBA) if pool in pools(driver)]
    found = reads(driver)
    assert found[0] == expected[0], f"FETCH-5: KV comes first, {expected[0]}, asked for were {found}"
    assert sorted(found) == sorted(expected), f"FETCH-5: {expected} is needed, asked for were {found}"


@clause("FETCH-5", page_sizes=[16])
def test_without_kv_no_other_pool_is_read(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    store(driver).corrupt(object_keys(driver, Pool.KV, PROMPT)[:1])
    driver.drain()
    assert prefetched_pages(driver, ticket) == 0, "FETCH-4: the first page of KV is lost"
    assert [pool for pool, _ in reads(driver)] == [Pool.KV], f"FETCH-5: no KV came, asked for were {reads(driver)}"


@clause("FETCH-5", "FETCH-6", page_sizes=[16], components=(SWA, MAMBA))
def test_the_window_and_the_state_are_read_at_the_end_of_the_readable_prefix(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    ticket = begin_prefetch(driver, PROMPT)
    store(driver).corrupt(object_keys(driver, Pool.KV, PROMPT)[3:])
    driver.drain()
    assert prefetched_pages(driver, ticket) == 3, "FETCH-4: three pages of KV can be read"
    window = list(range(3 - window_pages(driver.config), 3))
    found = reads(driver)
    tails = [named for named in found if named[0] in (Pool.SWA, Pool.MAMBA)]
    assert tails[-2:] == [(Pool.SWA, window), (Pool.MAMBA, [2])], f"FETCH-5: the prefix has 3 pages, read were {found}"
    twice = [page for pool, pages in found if pool is Pool.KV for page in pages]
    assert len(twice) == len(set(twice)), f"FETCH-5: what had come was read again: {found}"


@clause("FETCH-5", sidecars=(INDEXER,))
def test_kv_pages_without_their_sidecar_are_not_used(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    for lost in range(len(PROMPT)):
        came, expected = prefetch_without(driver, PROMPT, Pool.INDEXER, lost)
        assert came == expected, f"FETCH-5: the sidecar of page {lost} is lost: {expected} pages, {came} came"


@clause("FETCH-6", components=(SWA,), page_sizes=[16])
def test_a_window_is_prefetched_in_full_or_not_at_all(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    assert prefetch(driver, PROMPT) == len(PROMPT), "FETCH-4: all is in storage"
    window = window_pages(driver.config)
    held = {len(pages) for pages in host_slots(driver, SWA)}
    expected = set(range(len(PROMPT) - window + 1, len(PROMPT) + 1))
    assert held == expected, f"FETCH-6: the last window of {len(PROMPT)} pages is {expected}, on the host is {held}"


@clause("FETCH-6", components=(SWA,), page_sizes=[16])
def test_a_window_with_an_unreadable_page_is_freed(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    for lost in range(len(PROMPT) - window_pages(driver.config), len(PROMPT)):
        came, expected = prefetch_without(driver, PROMPT, Pool.SWA, lost)
        assert came == expected, f"FETCH-6: page {lost} of the window is lost: {expected} pages, {came} came"
        assert not slots_held_by_prefetches(driver), (
            f"FETCH-6: the whole window is freed, held is {slots_held_by_prefetches(driver)}"
        )


@clause("FETCH-6", components=(SWA,), page_sizes=[16])
def test_past_a_match_a_prefetch_shorter_than_the_window_reads_only_its_own_pages(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    assert prefetch(driver, PROMPT[:3]) == 3, "FETCH-4: the beginning comes first"
    before = len(reads(driver))
    came = prefetch(driver, PROMPT)
    assert came == 1, f"FETCH-6: one page is lacking, {came} came"
    swa = [pages for pool, pages in reads(driver)[before:] if pool is Pool.SWA]
    assert swa == [[3]], f"FETCH-6: the match has its own window, asked for were {swa}"


@clause("FETCH-6", components=(MAMBA,))
def test_a_state_is_prefetched_only_at_the_end_of_the_prefix(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT[:2], PROMPT)
    for wanted, expected in ((PROMPT[:1], 0), (PROMPT[:3], 2), (PROMPT, 4)):
        driver.reset()
        came = prefetch(driver, wanted)
        assert came == expected, f"FETCH-6: of {wanted} there are states after 2 and 4 pages, {came} came"
        assert len(host_slots(driver, MAMBA)) == (expected > 0), f"FETCH-6: got states {host_slots(driver, MAMBA)}"


@clause("FETCH-6", components=(MAMBA,), page_sizes=[16])
def test_an_unreadable_state_is_replaced_by_an_earlier_one(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT[:2], PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    store(driver).corrupt([object_keys(driver, Pool.MAMBA, PROMPT)[3]])
    driver.drain()
    came = prefetched_pages(driver, ticket)
    assert came == 2, f"FETCH-6: the state after 4 pages is lost, the one after 2 is there, {came} pages came"
    driver.verify_state(key_of(driver, PROMPT), driver.load(key_of(driver, PROMPT)))


@clause("FETCH-5", "FETCH-3", needs=STEPPED, sidecars=(INDEXER,), page_sizes=[16])
def test_a_prefetch_has_not_ended_while_a_sidecar_is_pending(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    pending = pending_job(driver, StorageKind.PREFETCH)
    for done in range(1, pending.batches):
        driver.advance_storage(pending.ticket)
        driver.step()
        left = pending.batches - done
        assert not host_slots(driver, FULL), f"FETCH-5: {left} batches are pending, and KV is in the tree"
    driver.advance_storage(pending.ticket)
    driver.step()
    assert prefetched_pages(driver, ticket) == len(PROMPT), "FETCH-5: all has come"
