"""EVICT-9: a reset empties both tiers and ends transfers; receipts, handles and tickets from before are refused."""

from __future__ import annotations

from threading import Timer

import pytest

from hicache.config import ExecutorKind, WritePolicy
from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import TransferKind

from .scenario import FULL, MAMBA, Scenario
from .snapshot_values import free_slots
from .transfer_phases import PHASES, Phase

# EVICT-9: a reset empties the cache; receipts and handles from before are refused.


def cache_prompts(driver: Scenario) -> None:
    """Cache several prompts."""
    for pages in ([1], [1, 2, 3], [1, 2, 4], [5]):
        driver.insert_fresh(pages)


@clause("EVICT-9", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_reset_frees_everything_that_the_tree_holds(driver: Scenario) -> None:
    free = free_slots(driver.snapshot())
    cache_prompts(driver)
    driver.lock_pages([1, 2, 3])
    driver.lock_pages([5])
    driver.reset()
    assert not driver.nodes(), f"EVICT-9: after a reset {driver.nodes().keys()} is left"
    after = free_slots(driver.snapshot())
    assert after == free, f"EVICT-9: after a reset slots are missing: {_missing(free, after)}"
    assert driver.hit_pages([1, 2, 3]) == 0, "EVICT-9: a prompt from before the reset hits"


@clause("EVICT-9", needs=[Capability.RESET])
def test_a_reset_keeps_the_slots_that_callers_hold(driver: Scenario) -> None:
    cache_prompts(driver)
    slots = driver.allocate(2 * driver.config.page_size)
    state = driver.allocate_state() if driver.has(MAMBA) else None
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
def test_receipts_from_before_a_reset_are_refused(driver: Scenario) -> None:
    cache_prompts(driver)
    old, of_root = driver.lock_pages([1, 2, 3]), driver.lock_pages([])
    driver.reset()
    for receipt in (old, of_root):
        with driver.refused("EVICT-9", "a receipt from before a reset"):
            driver.adapter.unlock(receipt)
    cache_prompts(driver)
    new = driver.lock_pages([1, 2, 3])
    before = driver.all_locks()
    with driver.refused("EVICT-9", "a receipt from before a reset, while the same prompt is locked again"):
        driver.adapter.unlock(old)
    assert driver.all_locks() == before, f"EVICT-9: an old receipt changed locks from {before} to {driver.all_locks()}"
    driver.unlock(new)


@clause("EVICT-9", needs=[Capability.SNAPSHOT])
def test_handles_from_before_a_reset_are_refused(driver: Scenario) -> None:
    cache_prompts(driver)
    old = driver.find([1, 2, 3])
    driver.reset()
    cache_prompts(driver)
    with driver.refused("EVICT-9", "a lock on a node from before a reset"):
        driver.adapter.lock(old)
    if driver.has(MAMBA):
        with driver.refused("EVICT-9", "a fork of a state from before a reset"):
            driver.adapter.fork_state(old)


@clause("EVICT-9", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_cache_after_a_reset_behaves_like_a_new_one(driver: Scenario) -> None:
    pictures = []
    for _ in range(2):
        cache_prompts(driver)
        driver.match(driver.key_of([5]))
        shape = {pages: (node.hits, set(node.slots)) for pages, node in driver.nodes().items()}
        order = []
        while driver.evict(FULL, 1).victims:
            order.append(sorted(driver.nodes()))
        pictures.append((shape, order))
        driver.insert_fresh([7, 8])
        driver.lock_pages([7, 8])
        driver.reset()
    assert pictures[0] == pictures[1], f"EVICT-9: expected the same behaviour before and after a reset, got {pictures}"


@clause("EVICT-9", needs=[Capability.SNAPSHOT])
def test_an_empty_cache_can_be_reset_and_evicted(driver: Scenario) -> None:
    for _ in range(2):
        driver.reset()
        driver.evict_all()
    assert not driver.nodes(), f"EVICT-9: an empty cache holds {driver.nodes().keys()}"
    driver.put_pages([1, 2])
    driver.find([1, 2])


def _missing(before: dict[str, set[int]], after: dict[str, set[int]]) -> dict[str, set[int]]:
    return {component: slots - after[component] for component, slots in before.items()}


# EVICT-9: a reset ends transfers under way and frees both tiers; tickets and receipts from before are refused.


WHOLE = (1, 2, 3)


def require_both_free(driver: Scenario, when: str) -> None:
    """Nothing is cached, and every slot of both tiers is free."""
    assert not driver.nodes(), f"EVICT-9: {when}: {driver.nodes().keys()} is left"
    free = driver.free_device_slots(), driver.free_host_slots()
    capacity = driver.config.capacity_tokens, driver.host_config.capacity_tokens
    assert free == capacity, f"EVICT-9: {when}: of {capacity} on the device and the host are free {free}"
    driver.require_idle(when)


def reset_and_drain(driver: Scenario, when: str) -> None:
    """Reset, and check that nothing is left, also after a drain."""
    driver.reset()
    require_both_free(driver, when)
    driver.drain()
    require_both_free(driver, f"{when}, and all was drained")


@clause("EVICT-9", "FLOW-5", page_sizes=[16])
@PHASES
def test_a_reset_ends_a_load(driver: Scenario, phase: Phase) -> None:
    driver.put_on_host(WHOLE)
    driver.queue_load(WHOLE)
    phase(driver, TransferKind.LOAD)
    reset_and_drain(driver, f"a load was {phase.__name__}")


@clause("EVICT-9", "FLOW-5", page_sizes=[16], write_policies=[WritePolicy.WRITE_THROUGH])
@PHASES
def test_a_reset_ends_a_backup(driver: Scenario, phase: Phase) -> None:
    driver.put_pages(WHOLE)
    phase(driver, TransferKind.BACKUP)
    reset_and_drain(driver, f"a backup was {phase.__name__}")


@clause("EVICT-9", "FLOW-4", page_sizes=[16])
def test_a_completion_that_comes_after_a_reset_is_refused(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    driver.queue_load(WHOLE)
    driver.step()
    ticket = driver.pending_transfer(TransferKind.LOAD).ticket
    driver.reset()
    driver.insert_fresh([7, 8, 9])
    before = driver.device_slots(FULL)
    with driver.refused("EVICT-9", "a completion of a transfer from before a reset"):
        driver.adapter.complete(ticket)
    with driver.refused("EVICT-9", "a layer of a transfer from before a reset"):
        driver.adapter.advance(ticket)
    with driver.refused("EVICT-9", "a failure of a transfer from before a reset"):
        driver.adapter.fail(ticket, 0)
    driver.step()
    assert driver.device_slots(FULL) == before, (
        f"EVICT-9: {before} became {driver.device_slots(FULL)} by what was under way before"
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
def test_a_load_that_a_reset_meets_changes_nothing_after_it(driver: Scenario) -> None:
    with driver.host_variant(host={"executor": ExecutorKind.THREADED}) as threaded:
        threaded.put_on_host(WHOLE)
        prompts = fill_after_a_reset(threaded)
        threaded.drain()
        threaded.evict(FULL, 2 * threaded.config.page_size)
        # Loads run one after the other: when this one has ended, so has that from before the reset.
        threaded.load(threaded.key_of(prompts[0]))
        threaded.drain()
        there = len(threaded.device_slots(FULL))
        assert there > 1, f"EVICT-9: expected prompts from after the reset on the device, {there} nodes are"
        threaded.check()


def fill_after_a_reset(driver: Scenario) -> list[range]:
    """Reset while a load is held on its thread, and fill the device with other prompts before it goes on."""
    driver.adapter.hold_transfers()
    driver.queue_load(WHOLE)
    driver.step()
    # A reset may wait for the load.
    release = Timer(HELD_S, driver.adapter.release_transfers)
    release.start()
    try:
        driver.reset()
        free = driver.free_device_slots()[FULL] // driver.config.page_size
        prompts = [range(first, first + 2) for first in range(20, 20 + free, 2)]
        for pages in prompts:
            driver.insert_fresh(pages)
    finally:
        release.cancel()
        driver.adapter.release_transfers()
    return prompts


@clause("EVICT-9", needs=[Capability.HOST], page_sizes=[16])
def test_tickets_and_host_receipts_from_before_a_reset_are_refused(driver: Scenario) -> None:
    driver.put_on_host(WHOLE, [8, 9])
    receipt = driver.lock_host(driver.best_match(WHOLE))
    done = driver.queue_load(WHOLE).ticket
    driver.drain()
    waiting = driver.queue_load([8, 9]).ticket
    driver.reset()
    for when in ("empty", "in use again"):
        for ticket in (done, waiting):
            for verb in (driver.adapter.claim, driver.adapter.abandon, driver.adapter.load_phase):
                with driver.refused("EVICT-9", f"{verb.__name__} of a ticket from before a reset, {when}"):
                    verb(ticket)
        with driver.refused("EVICT-9", f"a host receipt from before a reset, {when}"):
            driver.adapter.unlock_host(receipt)
        driver.put_on_both(WHOLE)
    locked = driver.lock_host(driver.best_match(WHOLE))
    before = driver.locks_on_host()
    with driver.refused("EVICT-9", "a host receipt from before a reset, while the same prompt is locked again"):
        driver.adapter.unlock_host(receipt)
    assert driver.locks_on_host() == before, f"EVICT-9: an old receipt changed {before} to {driver.locks_on_host()}"
    driver.unlock_host(locked)


@clause("EVICT-9", needs=[Capability.HOST], page_sizes=[16])
def test_a_reset_frees_slots_that_are_host_locked_or_kept_for_readers(driver: Scenario) -> None:
    driver.put_on_host(WHOLE)
    driver.lock_host(driver.best_match(WHOLE))
    driver.queue_load(WHOLE)
    driver.insert_fresh(WHOLE)
    driver.lock_pages(WHOLE)
    driver.drain()
    driver.reset()
    require_both_free(driver, "all was locked, and a load was kept for its reader")


@clause("EVICT-9", needs=[Capability.HOST, Capability.SIZES], page_sizes=[16])
def test_both_tiers_work_after_a_reset(driver: Scenario) -> None:
    for pages in (WHOLE, (4, 5, 6), WHOLE):
        driver.put_on_host(pages)
        driver.queue_load(pages)
        driver.put_pages([*pages, 9])
        driver.reset()
        driver.put_on_host(WHOLE)
        driver.verify_state(driver.key_of(WHOLE), driver.load(driver.key_of(WHOLE)))
        assert driver.tier_hits(WHOLE) == (3, 0), (
            f"EVICT-9: expected a load after a reset to bring (3, 0): {driver.tier_hits(WHOLE)}"
        )
        driver.require_all_evictable("a reset, a load and a reset again")
