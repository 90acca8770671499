"""FETCH-4: prefetched pages are inserted into the tree as it is then; duplicates and unneeded pages are freed."""

from __future__ import annotations

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool, StorageKind

from .scenario import FULL, MAMBA, SWA, capacity_for, evict_all, has, key_of, put, tier_hits, window_pages
from .storage_scenes import (
    OTHER,
    PREFETCH_STAGES,
    PREFIXES,
    PROMPT,
    PrefetchStage,
    begin_prefetch,
    complete_job,
    evict_both_tiers,
    expected_pages,
    in_storage,
    pending_job,
    prefetch,
    prefetch_without,
    prefetched_pages,
    put_in_storage,
    put_in_storage_alone,
    slots_held_by_prefetches,
    storage_variant,
    store,
)
from .tree_view import free_host_slots, host_slots, prefixes

STEPPED = [Capability.STEPPED_STORAGE]


@clause("FETCH-4", "HOST-7", "FLOW-10")
def test_prefetched_pages_can_be_loaded_and_read(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    came = prefetch(driver, PROMPT)
    assert came == len(PROMPT), f"FETCH-4: all of the prompt is in storage, {came} pages came"
    assert tier_hits(driver, PROMPT) == (0, len(PROMPT)), (
        f"FETCH-4: it is on the host: expected {(0, len(PROMPT))}, got {tier_hits(driver, PROMPT)}"
    )
    found = driver.load(key_of(driver, PROMPT))
    driver.verify_state(key_of(driver, PROMPT), found)
    assert tier_hits(driver, PROMPT) == (len(PROMPT), 0), (
        f"FLOW-10: it was loaded: expected {(len(PROMPT), 0)}, got {tier_hits(driver, PROMPT)}"
    )


@clause("FETCH-4", needs=STEPPED)
def test_prefetched_pages_are_inserted_only_when_a_step_takes_them_over(driver: Driver) -> None:
    put_in_storage_alone(driver, PROMPT)
    ticket = begin_prefetch(driver, PROMPT)
    driver.step()
    complete_job(driver, StorageKind.QUERY)
    driver.complete_storage(pending_job(driver, StorageKind.PREFETCH).ticket)
    assert tier_hits(driver, PROMPT) == (0, 0), (
        f"FLOW-2: nothing was taken over, yet a match gets {tier_hits(driver, PROMPT)}"
    )
    driver.step()
    assert tier_hits(driver, PROMPT) == (0, len(PROMPT)), f"FETCH-4: it was, a match gets {tier_hits(driver, PROMPT)}"
    assert prefetched_pages(driver, ticket) == len(PROMPT), "FETCH-4: all of it came"


@clause("FETCH-4")
def test_a_prefetch_brings_the_stored_prefix_of_a_prompt(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    came = prefetch(driver, (*PROMPT[:3], 9))
    assert came == 3, f"FETCH-4: three pages of the prompt are in storage, {came} came"
    assert not slots_held_by_prefetches(driver), (
        f"FETCH-4: the tail is free again, held are {slots_held_by_prefetches(driver)}"
    )
    assert host_slots(driver, FULL).keys() == prefixes(*PROMPT[:3]), f"FETCH-4: got {host_slots(driver, FULL).keys()}"


@PREFETCH_STAGES
@clause("FETCH-4", "INS-1", needs=STEPPED)
def test_pages_that_were_computed_meanwhile_stay_and_the_prefetched_ones_are_freed(
    driver: Driver, stage: PrefetchStage
) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    ticket = begin_prefetch(driver, PROMPT)
    stage(driver)
    put(driver, PROMPT)
    driver.drain()
    assert prefetched_pages(driver, ticket) == len(PROMPT), (
        "FETCH-4: expected all pages of the prompt to count, whoever computed or prefetched them"
    )
    assert not slots_held_by_prefetches(driver), (
        f"FETCH-4: two had the same pages, held are {slots_held_by_prefetches(driver)}"
    )
    assert tier_hits(driver, PROMPT) == (len(PROMPT), 0), f"FETCH-4: got {tier_hits(driver, PROMPT)}"
    capacity = driver.config.host.capacity_tokens if driver.config.host else {}
    used = {name: capacity[name] - free for name, free in free_host_slots(driver).items()}
    assert used[FULL] <= len(PROMPT) * driver.config.page_size, f"FETCH-4: each page once, used are {used}"


@PREFETCH_STAGES
@clause("FETCH-4", "INS-8", needs=STEPPED)
def test_pages_are_inserted_below_a_node_that_was_split_meanwhile(driver: Driver, stage: PrefetchStage) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    ticket = begin_prefetch(driver, PROMPT)
    stage(driver)
    put(driver, (*PROMPT[:1], 9))
    driver.drain()
    assert prefetched_pages(driver, ticket) == len(PROMPT), "FETCH-4: a match gets all of the prompt"
    driver.load(key_of(driver, PROMPT))
    assert tier_hits(driver, PROMPT) == (len(PROMPT), 0), f"FETCH-4: got {tier_hits(driver, PROMPT)}"


@PREFETCH_STAGES
@clause("FETCH-4", "FLOW-6", needs=STEPPED)
def test_two_prefetches_of_one_prompt_insert_it_once(driver: Driver, stage: PrefetchStage) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    first = begin_prefetch(driver, PROMPT)
    stage(driver)
    second = begin_prefetch(driver, PROMPT)
    driver.drain()
    for ticket in (first, second):
        assert prefetched_pages(driver, ticket) == len(PROMPT), (
            "FETCH-4: expected all pages of the prompt to count, whoever computed or prefetched them"
        )
    assert not slots_held_by_prefetches(driver), (
        f"FETCH-4: two had the same pages, held are {slots_held_by_prefetches(driver)}"
    )


@clause("FETCH-4", "FETCH-8", page_sizes=[16])
def test_a_prefetch_brings_as_many_pages_as_the_host_has_room_for(driver: Driver) -> None:
    for pages in range(1, len(PROMPT) + 1):
        states = window = len(PROMPT)
        sizes = capacity_for(driver.config, pages, states) | ({SWA: window * 16} if has(driver, SWA) else {})
        with storage_variant(driver) as writer:
            put_in_storage(writer, *PREFIXES)
        with storage_variant(driver, host={"capacity_tokens": sizes}) as narrow:
            came = prefetch(narrow, PROMPT)
            assert came == pages, f"FETCH-4: the host has {pages} pages, {came} came"
            assert not slots_held_by_prefetches(narrow), (
                f"FETCH-8: {slots_held_by_prefetches(narrow)} is held of what did not fit"
            )


@clause("FETCH-4", "EVICT-8", page_sizes=[16])
def test_a_prefetch_evicts_from_the_host(driver: Driver) -> None:
    with storage_variant(driver) as writer:
        put_in_storage(writer, PROMPT)
    sizes = capacity_for(driver.config, len(PROMPT), 1)
    with storage_variant(driver, host={"capacity_tokens": sizes}) as narrow:
        put_in_storage(narrow, OTHER)
        assert tier_hits(narrow, OTHER) == (0, len(OTHER)), (
            f"the host is taken, a match gets {tier_hits(narrow, OTHER)}"
        )
        came = prefetch(narrow, PROMPT)
        assert came == len(PROMPT), f"FETCH-4: what is on the host can go, {came} pages came"


@clause("FETCH-4", "FETCH-8", components=(SWA,), page_sizes=[16])
def test_without_room_for_a_window_a_prefetch_brings_nothing(driver: Driver) -> None:
    with storage_variant(driver) as writer:
        put_in_storage(writer, PROMPT)
    sizes = capacity_for(driver.config, len(PROMPT), 1) | {
        SWA: (window_pages(driver.config) - 1) * driver.config.page_size
    }
    with storage_variant(driver, host={"capacity_tokens": sizes}) as narrow:
        came = prefetch(narrow, PROMPT)
        assert came == 0, f"FETCH-6: there is no room for a whole window: expected 0 pages, got {came}"
        assert not slots_held_by_prefetches(narrow), f"FETCH-8: {slots_held_by_prefetches(narrow)} is held"


@clause("FETCH-4", "STORE-2")
def test_pages_before_an_unreadable_one_are_used(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    for lost in range(len(PROMPT)):
        came, expected = prefetch_without(driver, PROMPT, Pool.KV, lost)
        assert came == expected, f"FETCH-4: page {lost} was lost, {expected} pages can be used, {came} came"


@clause("FETCH-4", "FLOW-4", needs=STEPPED, page_sizes=[16])
def test_a_prefetch_ends_if_no_object_can_be_read(driver: Driver) -> None:
    put_in_storage_alone(driver, *PREFIXES)
    store(driver).corrupt(list(store(driver).objects))
    assert prefetch(driver, PROMPT) == 0, f"FETCH-4: nothing can be read, in storage is {in_storage(driver, PROMPT)}"
    queries = sum(call.verb == "exists" for call in store(driver).calls)
    assert queries <= 10, f"FLOW-4: one prefetch asked {queries} times what there is"
    assert not slots_held_by_prefetches(driver), f"FETCH-8: {slots_held_by_prefetches(driver)} is held"


@pytest.mark.parametrize("count", range(1, len(PROMPT) + 1))
@clause("FETCH-4", "FLOW-9")
def test_pages_evicted_from_both_tiers_are_prefetched_past_any_anchor(driver: Driver, count: int) -> None:
    put_in_storage(driver, *PREFIXES)
    evict_both_tiers(driver)
    if count < len(PROMPT):
        assert prefetch(driver, PROMPT[:count]) == count, "FETCH-4: the beginning comes first"
        evict_all(driver)
    expected = expected_pages(driver, PROMPT, anchor=count if count < len(PROMPT) else 0)
    came = prefetch(driver, PROMPT)
    assert came == expected, f"FETCH-4: past {count} pages {expected} are in storage, {came} came"
    if has(driver, MAMBA):
        driver.verify_state(key_of(driver, PROMPT), driver.load(key_of(driver, PROMPT)))
