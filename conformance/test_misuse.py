"""POOL-9, POOL-10, LOCK-9: every verb refuses slots and locks that the caller does not have, and invalid numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.types import PADDING_SLOT, Handle, Slots

from .scenario import FULL, MAMBA, REFUSALS, SWA, Scenario
from .snapshot_values import snapshot_values

# POOL-9: an insert takes what its caller holds, and what the tree has at the same place.

CACHED, WANTED = [1, 2], [3, 4]
"""A prompt that is cached, and the one that is inserted with a mistake."""


def _freed(driver: Scenario, own: Slots) -> Slots:
    driver.free(own)
    return own


def _half_freed(driver: Scenario, own: Slots) -> Slots:
    driver.free(own[len(own) // 2 :])
    return own


def _cached(driver: Scenario, _: Slots) -> Slots:
    return driver.match(driver.key_of(CACHED), chunked=True).device_indices


def _padding(driver: Scenario, own: Slots) -> Slots:
    return np.concatenate((np.arange(driver.config.page_size), own[driver.config.page_size :]))


WRONG_SLOTS: Mapping[str, Callable[[Scenario, Slots], Slots]] = {
    "freed": _freed,
    "freed in part": _half_freed,
    "the tree's under another key": _cached,
    "the tree's in part": lambda driver, own: np.concatenate(
        (own[: driver.config.page_size], _cached(driver, own)[driver.config.page_size :])
    ),
    "a page twice": lambda driver, own: np.tile(own[: driver.config.page_size], 2),
    "the padding page": _padding,
    "beyond the pool": lambda driver, own: own + driver.config.capacity_tokens[FULL],
    "below the pool": lambda driver, own: own - driver.config.capacity_tokens[FULL] - 2 * driver.config.page_size,
    "too few": lambda driver, own: own[: driver.config.page_size],
    "too many": lambda driver, own: np.concatenate((own, own[: driver.config.page_size])),
}
"""From two pages that the caller holds, what it passes by mistake."""


@clause("POOL-9", bigram=True)
@pytest.mark.parametrize("wrong_slots", WRONG_SLOTS.values(), ids=WRONG_SLOTS)
def test_an_insert_of_slots_that_are_not_the_callers_is_refused(
    driver: Scenario, wrong_slots: Callable[[Scenario, Slots], Slots]
) -> None:
    driver.put_pages(CACHED)
    wrong = wrong_slots(driver, _allocated(driver))
    state = driver.allocate_state() if driver.has(MAMBA) else None
    with driver.refused("POOL-9", f"inserting {wrong.tolist()}"):
        driver.adapter.insert(driver.key_of(WANTED), wrong, shared=0, window_start=0, state=state, priority=0)


@clause("POOL-9", needs=[Capability.PAGED], page_sizes=[3, 16])
def test_an_insert_of_parts_of_pages_is_refused(driver: Scenario) -> None:
    own = _allocated(driver)
    state = driver.allocate_state() if driver.has(MAMBA) else None
    for wrong in (np.roll(own, 1), own[::-1].copy(), np.repeat(own[:1], len(own))):
        with driver.refused("POOL-9", f"inserting {wrong.tolist()}, which are not whole pages"):
            driver.adapter.insert(driver.key_of(WANTED), wrong, shared=0, window_start=0, state=state, priority=0)


@clause("POOL-9", bigram=True)
def test_the_trees_slots_are_refused_below_another_prefix(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    shared = driver.match(driver.key_of([1, 2, 3]), chunked=True).device_indices
    page = driver.config.page_size
    state = driver.allocate_state() if driver.has(MAMBA) else None
    # The first page is at its place, the others are not: their prompt begins with it, and goes on otherwise.
    with driver.refused("POOL-9", f"inserting {shared.tolist()} for a prompt that differs after {page} tokens"):
        driver.adapter.insert(driver.key_of([1, 5, 6]), shared, shared=page, window_start=0, state=state, priority=0)


@clause("POOL-9", bigram=True)
def test_slots_at_the_same_place_of_the_key_are_no_mistake(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    shared = driver.match(driver.key_of([1, 2])).device_indices
    driver.put_pages([1, 2, 3])
    found = driver.match(driver.key_of([1, 2, 3])).device_indices
    assert found[: len(shared)].tolist() == shared.tolist(), (
        f"INS-1: {shared.tolist()} are shared, got {found.tolist()}"
    )


@clause("POOL-9", needs=[Capability.MAMBA])
def test_an_insert_of_a_state_that_the_caller_does_not_hold_is_refused(driver: Scenario) -> None:
    driver.put_pages(CACHED)
    in_tree = [slots[0] for node in driver.snapshot().nodes if (slots := node.slots[MAMBA]) is not None]
    freed = driver.allocate_state()
    assert freed is not None, "POOL-3: there is room for a state"
    driver.free_state(freed)
    beyond = driver.config.capacity_tokens[MAMBA] + 1
    own = _allocated(driver)
    for mistake, state in {"free": freed, "padding": PADDING_SLOT, "beyond": beyond, "the tree's": in_tree[0]}.items():
        with driver.refused("POOL-9", f"inserting with state {state}, {mistake},"):
            driver.adapter.insert(driver.key_of(WANTED), own, shared=0, window_start=0, state=state, priority=0)


def _allocated(driver: Scenario) -> Slots:
    slots = driver.allocate(2 * driver.config.page_size)
    assert slots is not None, "POOL-3: there is room for two pages"
    return slots


# POOL-10: a number of slots is a whole number.


@contextmanager
def refused_or_equal(driver: Scenario, mistake: str) -> Iterator[None]:
    """The block raises, also TypeError, and changes nothing; or it does what a whole number would do."""
    before = snapshot_values(driver.snapshot())
    try:
        yield
    except (*REFUSALS, TypeError):
        after = snapshot_values(driver.snapshot())
        assert after == before, f"POOL-10: {mistake} was refused, but the cache changed from {before} to {after}"
    driver.check()


@clause("POOL-10", bigram=True)
def test_a_number_of_slots_below_zero_is_refused(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    page = driver.config.page_size
    with driver.refused("POOL-10", f"allocating {-page} slots"):
        driver.adapter.allocate(-page)
    for component in driver.config.components:
        with driver.refused("POOL-10", f"evicting {-page} slots of {component}"):
            driver.adapter.evict(component, -page)


@clause("POOL-10", needs=[Capability.HOST])
def test_a_number_of_host_slots_below_zero_is_refused(driver: Scenario) -> None:
    driver.put_on_host([1, 2])
    page = driver.config.page_size
    with driver.refused("POOL-10", f"evicting {-page} slots from the host"):
        driver.adapter.evict_host(FULL, -page)
    with driver.refused("POOL-10", f"loading with a quota of {-page}"):
        driver.adapter.load_back(driver.best_match([1, 2]), quota=-page)


@clause("POOL-10", bigram=True)
def test_a_float_of_slots_does_no_harm(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    page = driver.config.page_size
    with refused_or_equal(driver, f"allocating {float(page)} slots"):
        slots = driver.adapter.allocate(float(page))  # type: ignore[arg-type]
        assert slots is not None, "POOL-3: there is room for a page"
        driver.ledger.take(slots, driver.adapter.partners(slots) if driver.has(SWA) else None)
    again = driver.allocate(page)
    assert again is not None, "POOL-10: there is room for a page after that"


@clause("POOL-10", bigram=True)
@pytest.mark.parametrize("count", [float("nan"), float("inf"), 0.5, None, "1"], ids=str)
def test_what_is_no_number_of_slots_is_refused(driver: Scenario, count: int) -> None:
    driver.put_pages([1, 2])
    verbs: dict[str, Callable[[], object]] = {
        "allocating": lambda: driver.adapter.allocate(count),
        "evicting": lambda: driver.adapter.evict(FULL, count),
    }
    for name, call in verbs.items():
        before = snapshot_values(driver.snapshot())
        with pytest.raises((*REFUSALS, TypeError, OverflowError)):
            call()
        after = snapshot_values(driver.snapshot())
        assert after == before, f"POOL-10: {name} {count} was refused, but the cache changed from {before} to {after}"
    driver.check()


# LOCK-9: handles, receipts and tickets of one cache are not those of another.

BY_HANDLE: Mapping[str, Callable[[Scenario, Handle], object]] = {
    "lock": lambda driver, handle: driver.adapter.lock(handle),
    "unlock": lambda driver, handle: driver.adapter.unlock(handle),
}


FOREIGN = [7, 8]
"""A prompt that only the other cache has."""


def _twin(driver: Scenario) -> Scenario:
    """Another cache of the same configuration."""
    return Scenario(type(driver.adapter)(driver.config), driver.config)


@clause("LOCK-9", bigram=True)
def test_a_handle_of_another_cache_is_refused(driver: Scenario) -> None:
    other = _twin(driver)
    driver.put_pages([1, 2])
    other.put_pages(FOREIGN)
    foreign = other.find(FOREIGN)
    before = snapshot_values(driver.snapshot())
    try:
        # Handles that are numbers may be equal by chance. Then the lock is one of this cache, by all laws.
        driver.unlock(driver.lock(foreign))
    except REFUSALS:
        after = snapshot_values(driver.snapshot())
        assert after == before, f"LOCK-9: the handle of another cache changed {before} to {after}"
    receipt = other.lock(foreign)
    with driver.refused("LOCK-9", "the receipt of another cache"):
        driver.adapter.unlock(receipt)
    other.unlock(receipt)
    other.adapter.close()


@clause("LOCK-9")
@pytest.mark.parametrize("verb", BY_HANDLE.values(), ids=BY_HANDLE)
def test_what_is_no_handle_is_refused(driver: Scenario, verb: Callable[[Scenario, Handle], object]) -> None:
    driver.put_pages([1, 2])
    for wrong in (None, object(), -1, "root", []):
        before = snapshot_values(driver.snapshot())
        with pytest.raises((*REFUSALS, TypeError)):
            verb(driver, wrong)
        after = snapshot_values(driver.snapshot())
        assert after == before, f"LOCK-9: {wrong!r} was refused, but the cache changed from {before} to {after}"
    driver.check()


@clause("LOCK-9", needs=[Capability.HOST])
def test_a_handle_or_ticket_of_another_host_tier_is_refused(driver: Scenario) -> None:
    other = _twin(driver)
    driver.put_on_host([1, 2])
    other.put_on_host(FOREIGN)
    foreign = other.best_match(FOREIGN)
    with driver.refused("LOCK-9", "a host lock on the node of another cache"):
        driver.adapter.lock_host(foreign)
    with driver.refused("LOCK-9", "a load-back of the node of another cache"):
        driver.adapter.load_back(foreign, quota=None)
    receipt = other.lock_host(foreign)
    with driver.refused("LOCK-9", "the host receipt of another cache"):
        driver.adapter.unlock_host(receipt)
    other.unlock_host(receipt)
    key = other.key_of(FOREIGN)
    load = other.load_back(key, other.match(key, chunked=True))
    assert load is not None, "HOST-4: a prompt that is on the host alone is loaded"
    for verb in (driver.adapter.load_phase, driver.adapter.claim, driver.adapter.abandon):
        with driver.refused("LOCK-9", f"{verb.__name__} of the load of another cache"):
            verb(load.ticket)
    other.adapter.close()


@clause("LOCK-9", needs=[Capability.STORAGE])
def test_the_ticket_of_another_caches_prefetch_is_refused(driver: Scenario) -> None:
    other = _twin(driver)
    other.put_in_storage_alone(FOREIGN)
    ticket = other.begin_prefetch(FOREIGN)
    for verb in (driver.adapter.check_prefetch, driver.adapter.abort_prefetch):
        with driver.refused("LOCK-9", f"{verb.__name__} of the prefetch of another cache"):
            verb(ticket)
    other.drain()
    assert other.prefetched_pages(ticket) == len(FOREIGN), "FETCH-4: the other cache's prefetch went on"
    other.adapter.close()
