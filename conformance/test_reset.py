"""EVICT-9: a reset empties the cache; receipts and handles from before are refused."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver

from .checks import refused
from .scenario import FULL, MAMBA, evict_all, find, has, hit_pages, insert_fresh, key_of, lock, put
from .tree_view import free_slots, locks, nodes


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


@clause("EVICT-9", needs=[Capability.SNAPSHOT])
def test_a_reset_keeps_the_slots_that_callers_hold(driver: Driver) -> None:
    cache_prompts(driver)
    slots = driver.allocate(2 * driver.config.page_size)
    state = driver.allocate_state() if has(driver, MAMBA) else None
    assert slots is not None, "two pages of many are free"
    driver.reset()
    free = free_slots(driver.snapshot())[FULL]
    assert not free.intersection(slots.tolist()), f"EVICT-9: a caller holds {slots}, and they are free after a reset"
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
