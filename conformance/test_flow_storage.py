"""FLOW-9: what was stored can be prefetched after an eviction and after a restart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache.config import WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Pool, StorageKind

from .scenario import FULL, evict_all, evict_host, key_of, put, tier_hits
from .storage_scenes import (
    OTHER,
    PAIR,
    PREFIXES,
    PROMPT,
    evict_both_tiers,
    expected_pages,
    in_storage,
    object_keys,
    pending_job,
    prefetch,
    put_in_storage,
    shows_marks,
    store,
    stored_components,
)
from .tree_view import nodes

BRANCHES = [PAIR, PROMPT, (1, 5, 6), (1, 5, 7), OTHER]
ASKED = [*BRANCHES, (1,), (1, 5), (1, 2, 3), (*PROMPT, 5), (5, 6)]


def gains(driver: Driver, prompts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], int]:
    """The pages that a prefetch of each prompt brings into an empty cache."""
    found: dict[tuple[int, ...], int] = {}
    for pages in prompts:
        driver.reset()
        found[tuple(pages)] = prefetch(driver, pages)
    return found


@clause("FLOW-9")
def test_a_prompt_hits_as_far_after_its_eviction_as_after_a_restart(driver: Driver) -> None:
    put_in_storage(driver, *BRANCHES)
    after_eviction: dict[tuple[int, ...], int] = {}
    for pages in ASKED:
        evict_both_tiers(driver)
        after_eviction[tuple(pages)] = prefetch(driver, pages)
    driver.restart()
    after_restart = gains(driver, ASKED)
    assert after_eviction == after_restart, (
        f"FLOW-9: storage has the same for both, evicted: {after_eviction}, restarted: {after_restart}"
    )
    for pages in BRANCHES:
        assert after_restart[pages] == len(pages), f"FLOW-9: expected all of {pages} from storage, got {after_restart}"


@clause("FLOW-9", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_node_that_left_the_host_alone_still_counts_as_stored(driver: Driver) -> None:
    put(driver, PAIR)
    driver.drain()
    evict_host(driver)
    assert not shows_marks(driver) or stored_components(driver)[PAIR], "FLOW-9: it is in storage and on the device"
    evict_all(driver)
    assert not nodes(driver), f"EVICT-1: it had no copy on the host, left are {nodes(driver).keys()}"
    assert prefetch(driver, PAIR) == len(PAIR), "FLOW-9: storage has it"


@clause("FLOW-9", needs=[Capability.STEPPED_STORAGE], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_node_evicted_before_storage_had_it_is_lost_with_its_descendants(driver: Driver) -> None:
    store(driver).faults.refused = set(object_keys(driver, Pool.KV, PROMPT))
    put(driver, PAIR)
    put(driver, PROMPT)
    driver.drain()
    evict_all(driver)
    evict_host(driver)
    store(driver).faults.refused = set()
    put(driver, OTHER)
    driver.drain()
    assert not any(in_storage(driver, PROMPT)[Pool.KV]), f"FLOW-9: it is nowhere, got {in_storage(driver, PROMPT)}"
    assert all(in_storage(driver, OTHER)[Pool.KV]), "FLOW-9: expected another prompt to be stored"


@clause("FLOW-9", write_policies=[WritePolicy.WRITE_BACK])
def test_with_write_back_stored_prefixes_never_have_a_gap(driver: Driver) -> None:
    for pages in BRANCHES:
        put(driver, pages)
    for _ in range(len(BRANCHES) * 4):
        driver.evict(FULL, 1)
        driver.drain()
        for pages in BRANCHES:
            there = in_storage(driver, pages)[Pool.KV]
            assert there == sorted(there, reverse=True), f"FLOW-9: of {pages} in storage is {there}"
    for pages in BRANCHES:
        assert all(in_storage(driver, pages)[Pool.KV]), f"FLOW-9: all left the device, {pages} is not in storage"


@pytest.mark.parametrize("lives", [1, 2, 3])
@clause("FLOW-9", "FETCH-9")
def test_a_restarted_cache_uses_what_earlier_ones_stored(driver: Driver, lives: int) -> None:
    long = tuple(range(1, lives + 2))
    for count in range(2, len(long) + 1):
        pages = long[:count]
        if count > 2:
            assert prefetch(driver, pages) == count - 1, (
                f"FLOW-9: {count - 1} pages were stored before the restart: expected them from a prefetch"
            )
            driver.load(key_of(driver, pages))
        put_in_storage(driver, pages)
        driver.restart()
    assert expected_pages(driver, long) == len(long), f"FLOW-9: in storage is {in_storage(driver, long)}"
    assert prefetch(driver, long) == len(long), (
        "FLOW-9: expected all pages, which were stored before different restarts"
    )


@clause("FLOW-9", "EVICT-9", needs=[Capability.STEPPED_STORAGE], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_reset_cancels_what_is_being_stored(driver: Driver) -> None:
    put(driver, PAIR)
    driver.step()
    driver.complete_all()
    pending_job(driver, StorageKind.STORE)
    driver.reset()
    assert not driver.pending_storage(), (
        f"EVICT-9: expected no pending storage jobs after a reset, got {driver.pending_storage()}"
    )
    assert driver.detach_storage(), "FLOW-12: everything was dropped, so that nothing is under way"
    assert driver.attach_storage(), "FLOW-12: it was detached"
    put(driver, OTHER)
    driver.drain()
    assert all(in_storage(driver, OTHER)[Pool.KV]), "EVICT-9: expected a prompt to be stored after the reset"
    assert tier_hits(driver, PAIR) == (0, 0), "EVICT-9: expected no hit after the reset"
    assert prefetch(driver, PAIR) == expected_pages(driver, PAIR), "FLOW-9: expected the pages that are in storage"


@clause("FLOW-9", "FETCH-4")
def test_each_stored_prefix_can_be_prefetched(driver: Driver) -> None:
    put_in_storage(driver, *PREFIXES)
    driver.restart()
    found = gains(driver, PREFIXES)
    expected = {pages: len(pages) for pages in PREFIXES}
    assert found == expected, f"FLOW-9: each prefix was stored: expected {expected} pages, got {found}"
