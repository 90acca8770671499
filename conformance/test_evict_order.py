"""EVICT-2: the order in which leaves are evicted, worked out by hand for each policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import EvictionPolicy
from hicache.testing.adapter import Capability
from hicache.testing.configurations import ALL_POLICIES
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Handle

from .scenario import FULL, find, insert_fresh, key_of, put
from .tree_view import Pages, nodes

LRU, LFU, FIFO, FILO, MRU, PRIORITY, SLRU = ALL_POLICIES


def victims(driver: Driver, count: int) -> list[Pages]:
    """Evict one page of FULL so many times; returns the evicted prompts in order."""
    order: list[Pages] = []
    for _ in range(count):
        before = nodes(driver).keys()
        driver.evict(FULL, 1)
        order += sorted(before - nodes(driver).keys())
    return order


def require_order(driver: Driver, expected: list[Pages], history: str) -> None:
    """Evict page by page, and compare the order with the expected one."""
    found = victims(driver, len(expected))
    policy = driver.config.policy.value
    assert found == expected, f"EVICT-2: {policy} after {history}: expected victims {expected}, got {found}"


def use(driver: Driver, *pages: int) -> None:
    """A request matches a prompt."""
    driver.match(key_of(driver, pages))


SIBLINGS = {
    LRU: [1, 4, 3, 2],  # used last: 1 before 4 came, 3 before 2
    LFU: [4, 1, 2, 3],  # hits 0, 1, 1, 2; of 1 and 2 the one used earlier
    FIFO: [1, 2, 3, 4],
    FILO: [4, 3, 2, 1],
    MRU: [2, 3, 4, 1],
    PRIORITY: [4, 2, 3, 1],  # priorities 0, 0, 1, 2; of 4 and 2 the one used earlier
    SLRU: [1, 4, 2, 3],  # 3 alone has the two hits of the protected segment
}


@clause("EVICT-2", policies=ALL_POLICIES, needs=[Capability.SNAPSHOT])
def test_leaves_are_evicted_in_the_order_of_the_policy(driver: Driver) -> None:
    put(driver, [1], priority=2)
    put(driver, [2], priority=0)
    put(driver, [3], priority=1)
    use(driver, 1)
    put(driver, [4], priority=0)
    for page in (3, 3, 2):
        use(driver, page)
    expected: list[Pages] = [(page,) for page in SIBLINGS[driver.config.policy]]
    require_order(driver, expected, "caching 1 2 3, a hit of 1, caching 4, hits of 3 3 2")


FAMILIES: dict[EvictionPolicy, list[Pages]] = {
    LRU: [(5,), (4,), (1, 2), (1,)],
    LFU: [(5,), (4,), (1, 2), (1,)],  # hits: 5 none, 4 one, (1, 2) one and later; 1 two, with those that went on to 2
    FIFO: [(1, 2), (1,), (4,), (5,)],  # 1 is the oldest, and no leaf before 2 has gone
    FILO: [(5,), (4,), (1, 2), (1,)],
    MRU: [(1, 2), (1,), (4,), (5,)],  # a use of (1, 2) is a use of 1
    PRIORITY: [(1, 2), (1,), (4,), (5,)],
    SLRU: [(5,), (4,), (1, 2), (1,)],  # 1 is in the protected segment by its two hits
}


@clause("EVICT-2", policies=ALL_POLICIES, needs=[Capability.SNAPSHOT])
def test_a_parent_is_a_leaf_once_its_children_are_gone(driver: Driver) -> None:
    put(driver, [1], priority=0)
    put(driver, [1, 2], priority=1)
    put(driver, [4], priority=2)
    put(driver, [5], priority=3)
    use(driver, 4)
    use(driver, 1, 2)
    require_order(driver, FAMILIES[driver.config.policy], "caching 1, (1, 2), 4, 5, hits of 4 and (1, 2)")


CHAINS: dict[EvictionPolicy, list[Pages]] = {
    LRU: [(7,), (1, 2, 3), (1, 2), (1,)],
    LFU: [(1, 2, 3), (7,), (1, 2), (1,)],  # hits 0, 1, 1, 2; of 7 and (1, 2) the one used earlier
    FIFO: [(7,), (1, 2, 3), (1, 2), (1,)],
    FILO: [(1, 2, 3), (7,), (1, 2), (1,)],
    MRU: [(1, 2, 3), (1, 2), (1,), (7,)],
    PRIORITY: [(7,), (1, 2, 3), (1, 2), (1,)],
    SLRU: [(7,), (1, 2, 3), (1, 2), (1,)],
}


@clause("EVICT-2", policies=ALL_POLICIES, needs=[Capability.SNAPSHOT])
def test_inner_nodes_are_not_evicted_before_their_children(driver: Driver) -> None:
    put(driver, [1], priority=1)
    put(driver, [1, 2], priority=1)
    put(driver, [7], priority=0)
    use(driver, 7)
    put(driver, [1, 2, 3], priority=1)
    require_order(driver, CHAINS[driver.config.policy], "caching 1, (1, 2), 7, a hit of 7, caching (1, 2, 3)")


TRIPLETS: dict[EvictionPolicy, list[Pages]] = {
    LRU: [(2,), (3,), (1,)],
    LFU: [(2,), (3,), (1,)],
    FIFO: [(1,), (2,), (3,)],
    FILO: [(3,), (2,), (1,)],
    MRU: [(1,), (3,), (2,)],
    PRIORITY: [(1,), (2,), (3,)],
    SLRU: [(2,), (3,), (1,)],
}


@clause("EVICT-2", policies=ALL_POLICIES, needs=[Capability.SNAPSHOT])
def test_a_locked_leaf_is_skipped_and_returns_to_its_place_when_released(driver: Driver) -> None:
    anchors: dict[Pages, Handle] = {}
    for page in (1, 2, 3):
        put(driver, [page], priority=page)
        anchors[page,] = find(driver, [page])
    use(driver, 1)
    first, second, third = TRIPLETS[driver.config.policy]
    receipt = driver.lock(anchors[first])
    found = victims(driver, 1)
    driver.unlock(receipt)
    found += victims(driver, 2)
    expected = [second, first, third]
    assert found == expected, f"EVICT-2: {first} is locked, then released: expected victims {expected}, got {found}"


@clause("EVICT-2", policies=[LFU, SLRU], needs=[Capability.SNAPSHOT])
def test_a_chunked_request_that_matches_again_is_not_a_new_hit(driver: Driver) -> None:
    for page in (1, 2):
        put(driver, [page])
    for _ in range(3):
        find(driver, [2])
    for _ in range(2):
        use(driver, 1)
    require_order(
        driver, [(2,), (1,)], "caching 1 and 2, one chunked request that looks for 2 three times, two hits of 1"
    )


@clause("EVICT-2", policies=[PRIORITY], needs=[Capability.SNAPSHOT])
def test_a_later_insert_raises_the_priority_and_never_lowers_it(driver: Driver) -> None:
    for page, priority in ((1, 0), (2, 3), (3, 5), (1, 4), (3, 0)):
        put(driver, [page], priority=priority)
    require_order(driver, [(2,), (1,), (3,)], "caching 1, 2, 3 with priorities 0, 3, 5, then 1 with 4 and 3 with 0")


@clause("EVICT-2", needs=[Capability.SNAPSHOT])
def test_a_hit_of_a_prompt_is_a_use_of_its_prefixes(driver: Driver) -> None:
    for pages in ([1], [1, 2], [3]):
        put(driver, pages)
    use(driver, 1, 2)
    require_order(driver, [(3,), (1, 2), (1,)], "caching 1, (1, 2), 3, and a hit of (1, 2)")


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT])
@pytest.mark.parametrize("insert", [put, insert_fresh])
def test_an_insert_of_a_cached_prompt_is_a_use(driver: Driver, insert: Callable[[Driver, list[int]], object]) -> None:
    for page in (1, 2, 3):
        put(driver, [page])
    insert(driver, [1])
    require_order(driver, [(2,), (3,), (1,)], "caching 1, 2, 3, and 1 again")
