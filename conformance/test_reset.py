"""EVICT-9: a reset empties both tiers and ends transfers; receipts, handles and tickets from before are refused."""

from __future__ import annotations

from threading import Timer

import pytest

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import TransferKind

from .checks import refused, require_all_evictable, require_idle
from .scenario import (
    FULL,
    MAMBA,
    best_match,
    evict_all,
    find,
    has,
    hit_pages,
    host_config,
    host_variant,
    insert_fresh,
    key_of,
    lock,
    put,
    put_on_both,
    put_on_host,
    tier_hits,
)
from .transfers import STAGES, Stage, pending_transfer, queue_load
from .tree_view import device_slots, free_device_slots, free_host_slots, free_slots, host_locks, locks, nodes

# EVICT-9: a reset empties the cache; receipts and handles from before are refused.


def cache_prompts(driver: Driver) -> None:
    """Cache several prompts."""
    for pages in ([1], [1, 2, 3], [1, 2, 4], [5]):
        insert_fresh(driver, pages)


@clause("EVICT-9", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_reset_frees_everything_that_the_tree_holds(driver: Driver) -> None:
    free = free_slots(driver.snapshot())
    cache_prompts(driver)
    lock(driver, [1, 2, 3])
    lock(driver, [5])
    driver.reset()
    assert not nodes(driver), f"EVICT-9: after a reset {nodes(driver).keys()} is left"
    after = free_slots(driver.snapshot())
    assert after == free, f"EVICT-9: after a reset slots are missing: {_missing(free, after)}"
    assert hit_pages(driver, [1, 2, 3]) == 0, "EVICT-9: a prompt from before the reset hits"


@clause("EVICT-9", needs=[Capability.RESET])
def test_a_reset_keeps_the_slots_that_callers_hold(driver: Driver) -> None:
    cache_prompts(driver)
    slots = driver.allocate(2 * driver.config.page_size)
    state = driver.allocate_state() if has(driver, MAMBA) else None
    assert slots is not None, "two pages of many are free"
    driver.reset()
    pages = []
    # Allocates all that is free, which needs no snapshot.
    while (page := driver.adapter.allocate(driver.config.page_size)) is not None:
        pages.append(page)
    again = {slot for page in pages for slot in page.tolist()}.intersection(slots.tolist())
    assert not again, f"EVICT-9: a caller holds {slots}, and {sorted(again)} were allocated again after a reset"
    for page in pages:
        driver.adapter.free(page)
    driver.free(slots)
    if state is not None:
        driver.free_state(state)


@clause("EVICT-9", needs=[Capability.SNAPSHOT], bigram=True)
def test_receipts_from_before_a_reset_are_refused(driver: Driver) -> None:
    cache_prompts(driver)
    old, of_root = lock(driver, [1, 2, 3]), lock(driver, [])
    driver.reset()
    for receipt in (old, of_root):
        with refused(driver, "EVICT-9", "a receipt from before a reset"):
            driver.adapter.unlock(receipt)
    cache_prompts(driver)
    new = lock(driver, [1, 2, 3])
    before = locks(driver)
    with refused(driver, "EVICT-9", "a receipt from before a reset, while the same prompt is locked again"):
        driver.adapter.unlock(old)
    assert locks(driver) == before, f"EVICT-9: an old receipt changed locks from {before} to {locks(driver)}"
    driver.unlock(new)


@clause("EVICT-9", needs=[Capability.SNAPSHOT])
def test_handles_from_before_a_reset_are_refused(driver: Driver) -> None:
    cache_prompts(driver)
    old = find(driver, [1, 2, 3])
    driver.reset()
    cache_prompts(driver)
    with refused(driver, "EVICT-9", "a lock on a node from before a reset"):
        driver.adapter.lock(old)
    if has(driver, MAMBA):
        with refused(driver, "EVICT-9", "a fork of a state from before a reset"):
            driver.adapter.fork_state(old)


@clause("EVICT-9", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_cache_after_a_reset_behaves_like_a_new_one(driver: Driver) -> None:
    pictures = []
    for _ in range(2):
        cache_prompts(driver)
        driver.match(key_of(driver, [5]))
        shape = {pages: (node.hits, set(node.slots)) for pages, node in nodes(driver).items()}
        order = []
        while driver.evict(FULL, 1).victims:
            order.append(sorted(nodes(driver)))
        pictures.append((shape, order))
        insert_fresh(driver, [7, 8])
        lock(driver, [7, 8])
        driver.reset()
    assert pictures[0] == pictures[1], f"EVICT-9: expected the same behaviour before and after a reset, got {pictures}"


@clause("EVICT-9", needs=[Capability.SNAPSHOT])
def test_an_empty_cache_can_be_reset_and_evicted(driver: Driver) -> None:
    for _ in range(2):
        driver.reset()
        evict_all(driver)
    assert not nodes(driver), f"EVICT-9: an empty cache holds {nodes(driver).keys()}"
    put(driver, [1, 2])
    find(driver, [1, 2])


def _missing(before: dict[str, set[int]], after: dict[str, set[int]]) -> dict[str, set[int]]:
    return {component: slots - after[component] for component, slots in before.items()}


# EVICT-9: a reset ends transfers under way and frees both tiers; tickets and receipts from before are refused.


WHOLE = (1, 2, 3)


def require_both_free(driver: Driver, when: str) -> None:
    """Nothing is cached, and every slot of both tiers is free."""
    assert not nodes(driver), f"EVICT-9: {when}: {nodes(driver).keys()} is left"
    free = free_device_slots(driver), free_host_slots(driver)
    capacity = driver.config.capacity_tokens, host_config(driver.config).capacity_tokens
    assert free == capacity, f"EVICT-9: {when}: of {capacity} on the device and the host are free {free}"
    require_idle(driver, when)


def reset_and_drain(driver: Driver, when: str) -> None:
    """Reset, and check that nothing is left, also after a drain."""
    driver.reset()
    require_both_free(driver, when)
    driver.drain()
    require_both_free(driver, f"{when}, and all was drained")


@clause("EVICT-9", "FLOW-5", page_sizes=[16])
@STAGES
def test_a_reset_ends_a_load(driver: Driver, stage: Stage) -> None:
    put_on_host(driver, WHOLE)
    queue_load(driver, WHOLE)
    stage(driver, TransferKind.LOAD)
    reset_and_drain(driver, f"a load was {stage.__name__}")


@clause("EVICT-9", "FLOW-5", page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
@STAGES
def test_a_reset_ends_a_backup(driver: Driver, stage: Stage) -> None:
    put(driver, WHOLE)
    stage(driver, TransferKind.BACKUP)
    reset_and_drain(driver, f"a backup was {stage.__name__}")


@clause("EVICT-9", "FLOW-4", page_sizes=[16])
def test_a_completion_that_comes_after_a_reset_is_refused(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    queue_load(driver, WHOLE)
    driver.step()
    ticket = pending_transfer(driver, TransferKind.LOAD).ticket
    driver.reset()
    insert_fresh(driver, [7, 8, 9])
    before = device_slots(driver, FULL)
    with refused(driver, "EVICT-9", "a completion of a transfer from before a reset"):
        driver.adapter.complete(ticket)
    with refused(driver, "EVICT-9", "a layer of a transfer from before a reset"):
        driver.adapter.advance(ticket)
    with refused(driver, "EVICT-9", "a failure of a transfer from before a reset"):
        driver.adapter.fail(ticket, 0)
    driver.step()
    assert device_slots(driver, FULL) == before, (
        f"EVICT-9: {before} became {device_slots(driver, FULL)} by what was under way before"
    )


HELD_S = 0.5
"""How long a reset may wait for a copy that is held, before the copy goes on by itself."""


@pytest.mark.waits
@clause(
    "EVICT-9",
    needs=[Capability.HOST, Capability.HELD],
    page_sizes=[16],
    write_policies=[WritePolicy.WRITE_THROUGH],
    executors=[ExecutorKind.STEPPED, ExecutorKind.THREADED],
)
def test_a_load_that_a_reset_meets_changes_nothing_after_it(driver: Driver) -> None:
    with host_variant(driver, host={"executor": ExecutorKind.THREADED}) as threaded:
        put_on_host(threaded, WHOLE)
        prompts = fill_after_a_reset(threaded)
        threaded.drain()
        threaded.evict(FULL, 2 * threaded.config.page_size)
        # Loads run one after the other: when this one has ended, so has that from before the reset.
        threaded.load(key_of(threaded, prompts[0]))
        threaded.drain()
        there = len(device_slots(threaded, FULL))
        assert there > 1, f"EVICT-9: expected prompts from after the reset on the device, {there} nodes are"
        threaded.check()


def fill_after_a_reset(driver: Driver) -> list[range]:
    """Reset while a load is held on its thread, and fill the device with other prompts before it goes on."""
    driver.adapter.hold_transfers()
    queue_load(driver, WHOLE)
    driver.step()
    # A reset may wait for the load.
    release = Timer(HELD_S, driver.adapter.release_transfers)
    release.start()
    try:
        driver.reset()
        free = free_device_slots(driver)[FULL] // driver.config.page_size
        prompts = [range(first, first + 2) for first in range(20, 20 + free, 2)]
        for pages in prompts:
            insert_fresh(driver, pages)
    finally:
        release.cancel()
        driver.adapter.release_transfers()
    return prompts


@clause("EVICT-9", needs=[Capability.HOST], page_sizes=[16])
def test_tickets_and_host_receipts_from_before_a_reset_are_refused(driver: Driver) -> None:
    put_on_host(driver, WHOLE, [8, 9])
    receipt = driver.lock_host(best_match(driver, WHOLE))
    done = queue_load(driver, WHOLE).ticket
    driver.drain()
    waiting = queue_load(driver, [8, 9]).ticket
    driver.reset()
    for when in ("empty", "in use again"):
        for ticket in (done, waiting):
            for verb in (driver.adapter.claim, driver.adapter.abandon, driver.adapter.load_phase):
                with refused(driver, "EVICT-9", f"{verb.__name__} of a ticket from before a reset, {when}"):
                    verb(ticket)
        with refused(driver, "EVICT-9", f"a host receipt from before a reset, {when}"):
            driver.adapter.unlock_host(receipt)
        put_on_both(driver, WHOLE)
    locked = driver.lock_host(best_match(driver, WHOLE))
    before = host_locks(driver)
    with refused(driver, "EVICT-9", "a host receipt from before a reset, while the same prompt is locked again"):
        driver.adapter.unlock_host(receipt)
    assert host_locks(driver) == before, f"EVICT-9: an old receipt changed {before} to {host_locks(driver)}"
    driver.unlock_host(locked)


@clause("EVICT-9", needs=[Capability.HOST], page_sizes=[16])
def test_a_reset_frees_slots_that_are_host_locked_or_kept_for_readers(driver: Driver) -> None:
    put_on_host(driver, WHOLE)
    driver.lock_host(best_match(driver, WHOLE))
    queue_load(driver, WHOLE)
    insert_fresh(driver, WHOLE)
    lock(driver, WHOLE)
    driver.drain()
    driver.reset()
    require_both_free(driver, "all was locked, and a load was kept for its reader")


@clause("EVICT-9", needs=[Capability.HOST, Capability.SIZES], page_sizes=[16])
def test_both_tiers_work_after_a_reset(driver: Driver) -> None:
    for pages in (WHOLE, (4, 5, 6), WHOLE):
        put_on_host(driver, pages)
        queue_load(driver, pages)
        put(driver, [*pages, 9])
        driver.reset()
        put_on_host(driver, WHOLE)
        driver.verify_state(key_of(driver, WHOLE), driver.load(key_of(driver, WHOLE)))
        assert tier_hits(driver, WHOLE) == (3, 0), (
            f"EVICT-9: expected a load after a reset to bring (3, 0): {tier_hits(driver, WHOLE)}"
        )
        require_all_evictable(driver, "a reset, a load and a reset again")
