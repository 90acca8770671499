"""POOL-1, POOL-2, POOL-4: every slot has one owner, is allocated in whole pages, and is freed once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import PADDING_SLOT, Sizes, Slots

from .checks import refused
from .scenario import FULL, MAMBA, SWA, evict_all, has, key_of, lock, put
from .tree_view import free_slots


@clause("POOL-1", bigram=True)
def test_free_and_cached_slots_make_up_the_pool(driver: Driver) -> None:
    pool = free_slots(driver.snapshot())
    put(driver, [1, 2, 3])
    put(driver, [1, 2, 4])
    receipt = lock(driver, [1, 2, 4])
    evict_all(driver)
    driver.unlock(receipt)
    snapshot = driver.snapshot()
    for component, free in free_slots(snapshot).items():
        cached = [slot for node in snapshot.nodes for slot in _slots_of(node.slots[component])]
        assert cached, f"POOL-1: {component} of the locked prompt is cached"
        assert sorted([*cached, *free]) == sorted(pool[component]), f"POOL-1: {component}: cached {cached}, free {free}"


@clause("POOL-1", bigram=True)
def test_all_slots_are_free_again_at_the_end(driver: Driver) -> None:
    pool = free_slots(driver.snapshot())
    held = driver.allocate(2 * driver.config.page_size)
    assert held is not None, "POOL-3: an empty cache has room for two pages"
    put(driver, [1, 2, 3])
    put(driver, [1, 4])
    driver.free(held)
    evict_all(driver)
    left = free_slots(driver.snapshot())
    assert left == pool, f"POOL-1: expected {pool} to be free, got {left}"


@clause("POOL-1", needs=[Capability.REQUESTS, Capability.PAGED], bigram=True)
def test_requests_that_share_a_part_of_a_page_own_no_page_together(driver: Driver) -> None:
    pool = free_slots(driver.snapshot())
    tokens = [*driver.prompt([1]), *driver.prompt([2])[: driver.config.page_size // 2]]
    running = [driver.admit(driver.key([*tokens, *tail])) for tail in ([], [7], [8])]
    for admission in running:
        assert admission is not None, "REQ-5: three short requests fit an empty cache"
        driver.finish(admission.request)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    left = free_slots(driver.snapshot())
    assert left == pool, f"POOL-1: expected {pool} to be free, got {left}"


@clause("POOL-1", needs=[Capability.SIZES], bigram=True)
def test_size_counters_are_those_of_the_nodes(driver: Driver) -> None:
    page = driver.config.page_size
    put(driver, [1, 2, 3])
    put(driver, [1, 2, 4])
    pages = {FULL: 4, SWA: 4, MAMBA: 2}
    for component, sizes in driver.adapter.sizes().items():
        count = pages[component] * (1 if component == MAMBA else page)
        expected = Sizes(evictable=count, protected=0, free=driver.config.capacity_tokens[component] - count)
        assert sizes == expected, f"POOL-1: {component}: expected {expected}, got {sizes}"


@clause("POOL-1", bigram=True)
def test_arrays_that_pass_between_caller_and_cache_are_not_shared(driver: Driver) -> None:
    key = key_of(driver, [1, 2])
    slots = driver.allocate(2 * driver.config.page_size)
    assert slots is not None, "POOL-3: an empty cache has room for two pages"
    mine = slots.copy()
    slots[:] = PADDING_SLOT
    driver.write(key, mine, 0)
    given = mine.copy()
    state = driver.allocate_state() if has(driver, MAMBA) else None
    if state is not None:
        driver.write_state(key, state)
    driver.insert(key, given, shared=0, state=state)
    given[:] = PADDING_SLOT
    driver.match(key).device_indices[:] = PADDING_SLOT
    for array in _arrays_shown(driver):
        array[:] = PADDING_SLOT
    found = driver.match(key).device_indices
    assert found.tolist() == mine.tolist(), f"POOL-1: expected {mine.tolist()}, got {found.tolist()}"
    driver.check()


@clause("POOL-1", bigram=True)
def test_an_array_of_slots_stays_as_it_is_when_others_are_given_back(driver: Driver) -> None:
    first, second = (driver.allocate(2 * driver.config.page_size) for _ in range(2))
    assert first is not None, "POOL-3: there is room for four pages"
    assert second is not None, "POOL-3: there is room for four pages"
    before = second.tolist()
    driver.free(first)
    assert second.tolist() == before, f"POOL-1: the caller held {before}, its array now says {second.tolist()}"
    driver.free(second)


@clause("POOL-2", bigram=True)
def test_no_slot_is_allocated_twice(driver: Driver) -> None:
    page = driver.config.page_size
    pages = min(driver.config.capacity_tokens[name] // page for name in (FULL, SWA) if has(driver, name))
    taken = [slots for _ in range(pages) if (slots := driver.allocate(page)) is not None]
    everything = np.concatenate(taken)
    assert len(np.unique(everything)) == len(everything) == pages * page, f"POOL-2: {everything.tolist()}"
    assert PADDING_SLOT not in everything, "POOL-2: expected the padding slot never to be allocated"
    assert driver.allocate(page) is None, "POOL-3: expected None from an empty pool"


def _again(driver: Driver, held: Slots) -> Slots:
    driver.free(held)
    return held


WRONG_SLOTS: dict[str, Callable[[Driver, Slots], Slots]] = {
    "free already": _again,
    "named twice": lambda _, held: np.concatenate((held, held)),
    "the padding slot": lambda driver, _: np.arange(driver.config.page_size),
    "beyond the pool": lambda driver, held: held + driver.config.capacity_tokens[FULL],
    "below the pool": lambda driver, held: held - driver.config.capacity_tokens[FULL] - driver.config.page_size,
    "held and never handed out": lambda driver, held: np.concatenate((held, held + driver.config.page_size)),
    "the tree's": lambda driver, _: driver.match(key_of(driver, [1, 2])).device_indices,
}


@clause("POOL-2", needs=[Capability.SNAPSHOT], bigram=True)
def test_freeing_a_slot_that_the_caller_does_not_hold_is_refused(driver: Driver) -> None:
    put(driver, [1, 2])
    for mistake, wrong_slots in WRONG_SLOTS.items():
        held = driver.allocate(driver.config.page_size)
        assert held is not None, "POOL-3: there is room for a page"
        wrong = wrong_slots(driver, held)
        with refused(driver, "POOL-2", f"freeing {wrong.tolist()}, {mistake},"):
            driver.adapter.free(wrong)


@clause("POOL-2", needs=[Capability.SNAPSHOT, Capability.MAMBA])
def test_freeing_a_state_that_the_caller_does_not_hold_is_refused(driver: Driver) -> None:
    put(driver, [1])
    in_tree = [slot for node in driver.snapshot().nodes for slot in _slots_of(node.slots[MAMBA])]
    state = driver.allocate_state()
    assert state is not None, "POOL-3: there is room for a state"
    driver.free_state(state)
    beyond = driver.config.capacity_tokens[MAMBA] + 1
    for mistake, slot in {"free": state, "padding": PADDING_SLOT, "beyond": beyond, "the tree's": in_tree[0]}.items():
        with refused(driver, "POOL-2", f"freeing state {slot}, {mistake},"):
            driver.adapter.free_state(slot)


@clause("POOL-4", bigram=True)
def test_pages_are_whole_and_aligned_also_when_the_free_ones_are_scattered(driver: Driver) -> None:
    page = driver.config.page_size
    taken = [slots for _ in range(6) if (slots := driver.allocate(page)) is not None]
    scattered = taken[::2]
    for slots in scattered:
        driver.free(slots)
    rest = driver.allocate(driver.config.capacity_tokens[SWA if has(driver, SWA) else FULL] - 3 * page)
    assert rest is not None, "POOL-3: all but three pages are free"
    starts = rest.reshape(-1, page)[:, 0]
    whole = (starts[:, None] + np.arange(page)).reshape(-1)
    assert (starts % page == 0).all(), f"POOL-4: pages start at {starts.tolist()}, not at multiples of {page}"
    assert np.array_equal(rest, whole), f"POOL-4: {rest.tolist()} are no whole pages of {page}"
    assert {int(slots[0]) for slots in scattered} <= set(starts.tolist()), "POOL-3: what was given back is used again"


def _arrays_shown(driver: Driver) -> list[Slots]:
    snapshot = driver.snapshot()
    shown = [slots for node in snapshot.nodes for slots in node.slots.values() if slots is not None]
    shown += [pool.free for pool in snapshot.pools.values()]
    if has(driver, SWA):
        shown.append(driver.adapter.partners(driver.match(key_of(driver, [1, 2])).device_indices))
    return [slots for slots in shown if slots.flags.writeable]


def _slots_of(slots: Slots | None) -> list[int]:
    return [] if slots is None else slots.tolist()
