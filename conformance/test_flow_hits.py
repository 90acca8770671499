"""FLOW-8 to FLOW-10: what leaves the device is a hit on the host or in storage, and a reported hit is delivered."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import Pool, StorageKind

from .scenario import FULL, MAMBA, REFUSALS, Scenario
from .snapshot_values import prefixes
from .stored_prompts import OTHER, PAIR, PREFIXES, PROMPT

# FLOW-8, FLOW-10: nodes that leave the device are hits on the host, and a reported hit can be loaded.


PROMPTS = ((1, 2), (1, 2, 3, 4), (1, 2, 9))
PREFIXES_OF_PROMPTS = sorted({prefix for pages in PROMPTS for prefix in prefixes(*pages)})


def hits(driver: Scenario) -> dict[tuple[int, ...], int]:
    """The device hit of each prefix of the prompts, in pages."""
    return {prefix: driver.tier_hits(prefix).device for prefix in PREFIXES_OF_PROMPTS}


def hits_after_loads(driver: Scenario) -> dict[tuple[int, ...], int]:
    """The same after a load of each prefix; states are verified too."""
    found = {}
    for prefix in PREFIXES_OF_PROMPTS:
        hit = driver.load(driver.key_of(prefix))
        driver.verify_state(driver.key_of(prefix), hit)
        found[prefix] = len(hit.device_indices) // driver.config.page_size
    return found


@clause("FLOW-8", page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH], executors=[ExecutorKind.STEPPED])
def test_every_prefix_hits_as_far_as_before_after_an_eviction_on_the_device(driver: Scenario) -> None:
    for count in range(1, 3):
        for order in permutations(driver.config.components, count):
            driver.reset()
            driver.put_on_both(*PROMPTS)
            before = hits(driver)
            driver.evict_all(*order)
            after = hits_after_loads(driver)
            assert after == before, f"FLOW-8: {order} left the device; hits {before} are {after} after loads"


@clause("FLOW-8", needs=[Capability.SIZES])
def test_every_prefix_hits_as_far_as_before_after_an_allocation_took_the_device(driver: Scenario) -> None:
    driver.put_on_both(*PROMPTS)
    before = hits(driver)
    slots = driver.allocate_all()
    left = sum(hits(driver).values())
    assert left == 0, f"EVICT-1: callers hold all slots: expected no device hit, got {left} pages"
    driver.free(slots)
    after = hits_after_loads(driver)
    assert after == before, f"FLOW-8: all was backed up; hits {before} are {after} after loads"


@clause("FLOW-8", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_backup_covers_each_component(driver: Scenario) -> None:
    driver.put_and_back_up(*PROMPTS)
    for component in driver.config.components:
        lost = driver.device_slots(component).keys() - driver.host_slots(component).keys()
        assert not lost, f"FLOW-8: the {component} data of {lost} is on the device alone, with nothing under way"


@clause("FLOW-10", layouts=True, write_policies=WritePolicy)
def test_a_hit_on_the_host_is_loaded(driver: Scenario) -> None:
    driver.put_on_host(*PROMPTS)
    for pages in PREFIXES_OF_PROMPTS:
        key = driver.key_of(pages)
        promised = sum(driver.tier_hits(pages))
        found = driver.load(key)
        delivered = len(found.device_indices) // driver.config.page_size
        assert delivered == promised, f"FLOW-10: {promised} pages were reported for {pages}, {delivered} delivered"
        driver.verify_state(key, found)


@clause("FLOW-10", "FLOW-5")
def test_a_hit_that_left_the_host_in_part_is_not_loaded(driver: Scenario) -> None:
    for component in driver.config.components:
        driver.reset()
        driver.put_on_host([1, 2])
        key = driver.key_of([1, 2])
        found = driver.match(key)
        driver.evict_host(component, 1)
        before = driver.adapter.sizes()
        try:
            load = driver.adapter.load_back(found.best_match, quota=None)
        except REFUSALS:
            load = None
        assert load is None, f"FLOW-10: the {component} data left the host after the match, and a load was started"
        after = driver.adapter.sizes()
        assert after == before, f"FLOW-10: a load that was not started changed {before} to {after}"
        driver.check()


@clause("FLOW-10", "LOCK-7")
def test_a_hit_that_is_locked_on_the_host_can_be_loaded(driver: Scenario) -> None:
    driver.put_on_host([1, 2], [3])
    key = driver.key_of([1, 2])
    found = driver.match(key)
    receipt = driver.lock_host(found.best_match)
    driver.evict_all_host()
    load = driver.load_back(key, found)
    assert load is not None, f"LOCK-7: {found.host_hit_length} tokens were found and locked, and cannot be loaded"
    driver.drain()
    driver.claim(load.ticket)
    driver.unlock_host(receipt)
    assert driver.tier_hits([1, 2]) == (2, 0), (
        f"FLOW-10: both pages are on the device: expected (2, 0), got {driver.tier_hits([1, 2])}"
    )


@clause("FLOW-10", needs=[Capability.SIZES])
def test_loaded_pages_stay_until_the_load_is_claimed(driver: Scenario) -> None:
    driver.put_on_host([1, 2])
    key = driver.key_of([1, 2])
    load = driver.load_back(key, driver.match(key))
    assert load is not None, "HOST-4: both pages are on the host, and there is room"
    driver.drain()
    driver.evict_all()
    assert driver.tier_hits([1, 2]) == (2, 0), (
        f"FLOW-10: the load is not claimed: expected (2, 0), got {driver.tier_hits([1, 2])}"
    )
    receipt = driver.lock(driver.best_match([1, 2]))
    driver.claim(load.ticket)
    driver.evict_all()
    assert driver.tier_hits([1, 2]) == (2, 0), f"LOCK-5: it is locked: expected (2, 0), got {driver.tier_hits([1, 2])}"
    driver.unlock(receipt)
    driver.evict_all()
    assert driver.tier_hits([1, 2]) == (0, 2), (
        f"LOCK-2: the device lock is released: expected (0, 2), got {driver.tier_hits([1, 2])}"
    )
    driver.put_pages([1, 2])


# FLOW-9: what was stored can be prefetched after an eviction and after a restart.


BRANCHES = [PAIR, PROMPT, (1, 5, 6), (1, 5, 7), OTHER]
ASKED = [*BRANCHES, (1,), (1, 5), (1, 2, 3), (*PROMPT, 5), (5, 6)]


def gains(driver: Scenario, prompts: Sequence[Sequence[int]]) -> dict[tuple[int, ...], int]:
    """The pages that a prefetch of each prompt brings into an empty cache."""
    found: dict[tuple[int, ...], int] = {}
    for pages in prompts:
        driver.reset()
        found[tuple(pages)] = driver.prefetch_pages(pages)
    return found


@clause("FLOW-9")
def test_a_prompt_hits_as_far_after_its_eviction_as_after_a_restart(driver: Scenario) -> None:
    driver.put_in_storage(*BRANCHES)
    after_eviction: dict[tuple[int, ...], int] = {}
    for pages in ASKED:
        driver.evict_both_tiers()
        after_eviction[tuple(pages)] = driver.prefetch_pages(pages)
    driver.restart()
    after_restart = gains(driver, ASKED)
    assert after_eviction == after_restart, (
        f"FLOW-9: storage has the same for both, evicted: {after_eviction}, restarted: {after_restart}"
    )
    for pages in BRANCHES:
        assert after_restart[pages] == len(pages), f"FLOW-9: expected all of {pages} from storage, got {after_restart}"


@clause("FLOW-9", write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_node_that_left_the_host_alone_still_counts_as_stored(driver: Scenario) -> None:
    driver.put_pages(PAIR)
    driver.drain()
    driver.evict_all_host()
    assert not driver.shows_marks() or driver.stored_components()[PAIR], "FLOW-9: it is in storage and on the device"
    driver.evict_all()
    assert not driver.nodes(), f"EVICT-1: it had no copy on the host, left are {driver.nodes().keys()}"
    assert driver.prefetch_pages(PAIR) == len(PAIR), "FLOW-9: storage has it"


@clause("FLOW-9", needs=[Capability.STEPPED_STORAGE], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_node_evicted_before_storage_had_it_is_lost_with_its_descendants(driver: Scenario) -> None:
    driver.store().faults.refused = set(driver.object_keys(Pool.KV, PROMPT))
    driver.put_pages(PAIR)
    driver.put_pages(PROMPT)
    driver.drain()
    driver.evict_all()
    driver.evict_all_host()
    driver.store().faults.refused = set()
    driver.put_pages(OTHER)
    driver.drain()
    assert not any(driver.in_storage(PROMPT)[Pool.KV]), f"FLOW-9: it is nowhere, got {driver.in_storage(PROMPT)}"
    assert all(driver.in_storage(OTHER)[Pool.KV]), "FLOW-9: expected another prompt to be stored"


@clause("FLOW-9", "FETCH-9", components=(MAMBA,), write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_state_that_a_prefetch_brings_is_not_stored_without_its_pages(driver: Scenario) -> None:
    driver.put_in_storage(PAIR, PROMPT)
    driver.reset()
    objects = dict(driver.store().objects)
    driver.store().empty()
    driver.store().faults.refused = set(driver.object_keys(Pool.KV, PROMPT))
    driver.put_pages(PROMPT)
    driver.drain()
    # Another cache stores the same in the meantime.
    driver.store().restore(objects)
    # The check after each verb finds a node with a stored state whose pages were refused.
    assert driver.prefetch_pages(PAIR) == len(PAIR), "FLOW-9: storage has the pages and the state"
    driver.store().faults.refused = set()
    driver.put_pages(PAIR)
    driver.drain()
    assert not driver.shows_marks() or driver.stored_components()[PAIR] == set(driver.config.components), (
        f"FLOW-4: nothing is refused any more, and it was used again, got {driver.stored_components()}"
    )


@clause("FLOW-9", write_policies=[WritePolicy.WRITE_BACK])
def test_with_write_back_stored_prefixes_never_have_a_gap(driver: Scenario) -> None:
    for pages in BRANCHES:
        driver.put_pages(pages)
    for _ in range(len(BRANCHES) * 4):
        driver.evict(FULL, 1)
        driver.drain()
        for pages in BRANCHES:
            there = driver.in_storage(pages)[Pool.KV]
            assert there == sorted(there, reverse=True), f"FLOW-9: of {pages} in storage is {there}"
    for pages in BRANCHES:
        assert all(driver.in_storage(pages)[Pool.KV]), f"FLOW-9: all left the device, {pages} is not in storage"


@pytest.mark.parametrize("lives", [1, 2, 3])
@clause("FLOW-9", "FETCH-9")
def test_a_restarted_cache_uses_what_earlier_ones_stored(driver: Scenario, lives: int) -> None:
    long = tuple(range(1, lives + 2))
    for count in range(2, len(long) + 1):
        pages = long[:count]
        if count > 2:
            assert driver.prefetch_pages(pages) == count - 1, (
                f"FLOW-9: {count - 1} pages were stored before the restart: expected them from a prefetch"
            )
            driver.load(driver.key_of(pages))
        driver.put_in_storage(pages)
        driver.restart()
    assert driver.expected_pages(long) == len(long), f"FLOW-9: in storage is {driver.in_storage(long)}"
    assert driver.prefetch_pages(long) == len(long), (
        "FLOW-9: expected all pages, which were stored before different restarts"
    )


@clause("FLOW-9", "EVICT-9", needs=[Capability.STEPPED_STORAGE], write_policies=[WritePolicy.WRITE_THROUGH])
def test_a_reset_cancels_what_is_being_stored(driver: Scenario) -> None:
    driver.put_pages(PAIR)
    driver.step()
    driver.complete_all()
    driver.pending_job(StorageKind.STORE)
    driver.reset()
    assert not driver.pending(*StorageKind), (
        f"EVICT-9: expected no pending storage jobs after a reset, got {driver.pending(*StorageKind)}"
    )
    assert driver.detach_storage(), "FLOW-12: everything was dropped, so that nothing is under way"
    assert driver.attach_storage(), "FLOW-12: it was detached"
    driver.put_pages(OTHER)
    driver.drain()
    assert all(driver.in_storage(OTHER)[Pool.KV]), "EVICT-9: expected a prompt to be stored after the reset"
    assert driver.tier_hits(PAIR) == (0, 0), "EVICT-9: expected no hit after the reset"
    assert driver.prefetch_pages(PAIR) == driver.expected_pages(PAIR), "FLOW-9: expected the pages that are in storage"


@clause("FLOW-9", "FETCH-4")
def test_each_stored_prefix_can_be_prefetched(driver: Scenario) -> None:
    driver.put_in_storage(*PREFIXES)
    driver.restart()
    found = gains(driver, PREFIXES)
    expected = {pages: len(pages) for pages in PREFIXES}
    assert found == expected, f"FLOW-9: each prefix was stored: expected {expected} pages, got {found}"
