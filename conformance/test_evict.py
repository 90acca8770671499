"""EVICT-1 to EVICT-6: how much an eviction on the device frees, in which order, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import EvictionPolicy
from hicache.testing.adapter import Capability
from hicache.testing.configurations import ALL_POLICIES
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Component, Handle

from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    evict_all,
    evicted_with,
    find,
    has,
    hit_pages,
    insert_fresh,
    key_of,
    lock,
    longer_prompt,
    make_tombstone,
    open_variant,
    open_with_window,
    put,
    recompute,
    unit,
    use,
    window_tokens,
)
from .tree_view import Pages, components_on_device, device_slots, hits, locks, nodes, prefixes, snapshot_values

# EVICT-1: how much an eviction frees; it always ends.


LEAVES = (1, 2, 3, 4)


def put_leaves(driver: Driver) -> None:
    """Cache four prompts of one page each."""
    for page in LEAVES:
        insert_fresh(driver, [page])


def amounts(driver: Driver, component: str) -> list[int]:
    """Slots to ask for: whole pages, and with several slots a page also parts of pages."""
    size = unit(driver, component)
    return sorted({1, size + 1, 3 * size})


@clause("EVICT-1", page_sizes=[1, 16], bigram=True)
def test_an_eviction_frees_the_whole_pages_that_were_asked_for(driver: Driver) -> None:
    for component in driver.config.components:
        size = unit(driver, component)
        for asked in amounts(driver, component):
            put_leaves(driver)
            expected = -(-asked // size)
            result = driver.evict(component, asked)
            freed = result.freed[component]
            assert freed == expected * size, f"EVICT-1: {asked} of {component} asked in leaves of {size}: freed {freed}"
            assert result.victims == expected, f"EVICT-1: {expected} victims suffice for {asked}, got {result}"
            hits = sum(hit_pages(driver, [page]) for page in LEAVES)
            assert hits == len(LEAVES) - expected, f"EVICT-1: {expected} of {len(LEAVES)} were to go, {hits} are left"
            evict_all(driver)


@clause("EVICT-1", bigram=True)
def test_no_victim_is_taken_after_the_last_one_needed(driver: Driver) -> None:
    size = driver.config.page_size
    for pages in ([1, 11, 12], [2, 21, 22]):
        put(driver, pages)
    driver.match(key_of(driver, [2, 21, 22]))
    result = driver.evict(FULL, 1)
    # A leaf of several pages may be cut at the window's edge; the other prompt is not touched for it.
    assert result.freed[FULL] <= 3 * size, f"EVICT-1: one slot was asked, the first prompt has 3 pages: {result}"
    find(driver, [2, 21, 22])
    assert hit_pages(driver, [1, 11, 12]) < 3, "EVICT-2: the prompt that was used last is not the first to go"


@clause("EVICT-1", bigram=True)
def test_evicting_no_slots_and_more_slots_than_are_cached(driver: Driver) -> None:
    for component in driver.config.components:
        put_leaves(driver)
        size, capacity = unit(driver, component), driver.config.capacity_tokens[component]
        for asked, expected in ((0, 0), (10 * capacity, len(LEAVES)), (capacity, 0)):
            result = driver.evict(component, asked)
            found = result.freed[component], result.victims
            assert found == (expected * size, expected), (
                f"EVICT-1: {asked} of {component} asked: {expected} go, {result}"
            )


@clause("EVICT-1", "EVICT-5", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_evicting_one_slot_at_a_time_empties_the_cache(driver: Driver) -> None:
    for component in driver.config.components:
        for pages in ([1], [1, 2], [1, 2, 3, 4], [1, 5], [6, 7]):
            insert_fresh(driver, pages)
        steps = 0
        while driver.adapter.sizes()[component].evictable:
            freed = driver.evict(component, 1).freed[component]
            assert freed, f"EVICT-1: {component} is evictable, and evicting one slot of it freed none"
            steps += 1
        assert steps >= 2, (
            f"EVICT-1: {component} is on several nodes: expected at least 2 evictions of one slot, got {steps}"
        )
        evict_all(driver)
        assert not nodes(driver), f"EVICT-1: all was evictable, {nodes(driver).keys()} is left"


@clause("EVICT-1", page_sizes=[1, 16], needs=[Capability.SIZES], bigram=True)
def test_an_allocation_evicts_only_the_missing_pages(driver: Driver) -> None:
    size = driver.config.page_size
    put_leaves(driver)
    paged = [component for component in driver.config.components if component != Component.MAMBA]
    free = min(driver.adapter.sizes()[component].free for component in paged)
    for missing in (0, 2):
        slots = driver.allocate(free + missing * size)
        assert slots is not None, f"EVICT-1: {missing} pages are missing, and evictable"
        left = sum(hit_pages(driver, [page]) for page in LEAVES)
        assert left == len(LEAVES) - missing, f"EVICT-1: {missing} pages were missing, {left} of {len(LEAVES)} are left"
        driver.free(slots)
        put_leaves(driver)


@clause("EVICT-1", "POOL-3", needs=[Capability.SIZES], bigram=True)
def test_an_allocation_that_does_not_fit_evicts_nothing(driver: Driver) -> None:
    put_leaves(driver)
    receipt = lock(driver, LEAVES[:1])
    too_much = driver.config.capacity_tokens[FULL]
    assert driver.allocate(too_much) is None, f"LOCK-5: {too_much} slots were given, though some are locked"
    left = sum(hit_pages(driver, [page]) for page in LEAVES)
    assert left == len(LEAVES), f"EVICT-1: nothing was gained by an eviction, and {left} of {len(LEAVES)} are left"
    driver.unlock(receipt)


@clause("EVICT-1", components=(MAMBA,))
def test_a_state_is_evicted_when_one_is_missing(driver: Driver) -> None:
    put_leaves(driver)
    free = driver.config.capacity_tokens[MAMBA] - len(LEAVES)
    for taken in range(1, free + 3):
        assert driver.allocate_state() is not None, (
            f"EVICT-1: {free} states are free, 4 evictable; number {taken}: None"
        )
        left, expected = sum(hit_pages(driver, [page]) for page in LEAVES), min(4, 4 + free - taken)
        assert left == expected, f"EVICT-1: {taken} states taken, {free} were free: {expected} of 4 stay, not {left}"


@clause("EVICT-1", "LOCK-5", components=(MAMBA,), needs=[Capability.SNAPSHOT])
def test_without_a_free_or_evictable_state_the_answer_is_none(driver: Driver) -> None:
    put_leaves(driver)
    anchors = [find(driver, [page]) for page in LEAVES]
    receipts = [driver.lock(anchor) for anchor in anchors]
    list(iter(driver.allocate_state, None))
    before = snapshot_values(driver.snapshot())
    answers = driver.allocate_state(), driver.fork_state(anchors[0]), driver.evict(MAMBA, 1).victims
    assert answers == (None, None, 0), f"EVICT-1: every state is held or locked; allocate, fork, evict gave {answers}"
    assert snapshot_values(driver.snapshot()) == before, "EVICT-1: a failed allocation of a state changed the cache"
    for receipt in receipts:
        driver.unlock(receipt)


@clause("EVICT-1", "LOCK-5", bigram=True)
def test_when_everything_is_locked_no_verb_raises(driver: Driver) -> None:
    put_leaves(driver)
    receipts = [lock(driver, [page]) for page in LEAVES]
    for component in driver.config.components:
        result = driver.evict(component, unit(driver, component))
        assert (result.victims, result.freed[component]) == (0, 0), f"EVICT-1: all is locked, yet {result}"
    for page in LEAVES:
        find(driver, [page])
    for receipt in receipts:
        driver.unlock(receipt)


# EVICT-2: the order in which leaves are evicted, worked out by hand for each policy.


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


@clause("EVICT-2", components=(FULL,), alone=True, page_sizes=[1, 16])
def test_prompts_that_are_looked_up_are_evicted_in_the_order_of_use(driver: Driver) -> None:
    for page in (1, 2, 3):
        put(driver, [page])
    hit_pages(driver, [1])
    order = (2, 3, 1)
    for count in range(1, len(order) + 1):
        driver.evict(FULL, 1)
        # Looked up in the order of use, so that the look-ups do not change it.
        left = [page for page in order if hit_pages(driver, [page])]
        expected = list(order[count:])
        assert left == expected, f"EVICT-2: 1 2 3 were cached and 1 used: evicted {count}, {expected} stay, not {left}"


SIBLINGS = {
    LRU: [1, 4, 3, 2],  # used last: 1 before 4 came, 3 before 2
    LFU: [4, 1, 2, 3],  # hits 0, 1, 1, 2; of 1 and 2 the one used earlier
    FIFO: [1, 2, 3, 4],
    FILO: [4, 3, 2, 1],
    MRU: [2, 3, 4, 1],
    PRIORITY: [4, 2, 3, 1],  # priorities 0, 0, 1, 2; of 4 and 2 the one used earlier
    SLRU: [4, 1, 3, 2],  # 4 alone was not hit, and is not in the protected segment
}


@clause("EVICT-2", policies=ALL_POLICIES, needs=[Capability.SNAPSHOT])
def test_leaves_are_evicted_in_the_order_of_the_policy(driver: Driver) -> None:
    put(driver, [1], priority=2)
    put(driver, [2], priority=0)
    put(driver, [3], priority=1)
    use(driver, [1])
    put(driver, [4], priority=0)
    for page in (3, 3, 2):
        use(driver, [page])
    expected: list[Pages] = [(page,) for page in SIBLINGS[driver.config.policy]]
    require_order(driver, expected, "caching 1 2 3, a hit of 1, caching 4, hits of 3 3 2")


FAMILIES: dict[EvictionPolicy, list[Pages]] = {
    LRU: [(5,), (4,), (1, 2), (1,)],
    LFU: [(5,), (4,), (1, 2), (1,)],  # hits: 5 none, 4 one, (1, 2) one and later; 1 two, with those that went on to 2
    FIFO: [(1, 2), (1,), (4,), (5,)],  # 1 is the oldest, and no leaf before 2 has gone
    FILO: [(5,), (4,), (1, 2), (1,)],
    MRU: [(1, 2), (1,), (4,), (5,)],  # a use of (1, 2) is a use of 1
    PRIORITY: [(1, 2), (1,), (4,), (5,)],
    SLRU: [(5,), (4,), (1, 2), (1,)],  # 5 alone was not hit
}


@clause("EVICT-2", policies=ALL_POLICIES, needs=[Capability.SNAPSHOT])
def test_a_parent_is_a_leaf_once_its_children_are_gone(driver: Driver) -> None:
    put(driver, [1], priority=0)
    put(driver, [1, 2], priority=1)
    put(driver, [4], priority=2)
    put(driver, [5], priority=3)
    use(driver, [4])
    use(driver, [1, 2])
    require_order(driver, FAMILIES[driver.config.policy], "caching 1, (1, 2), 4, 5, hits of 4 and (1, 2)")


CHAINS: dict[EvictionPolicy, list[Pages]] = {
    LRU: [(7,), (1, 2, 3), (1, 2), (1,)],
    LFU: [(1, 2, 3), (7,), (1, 2), (1,)],  # hits 0, 1, 1, 2; of 7 and (1, 2) the one used earlier
    FIFO: [(7,), (1, 2, 3), (1, 2), (1,)],
    FILO: [(1, 2, 3), (7,), (1, 2), (1,)],
    MRU: [(1, 2, 3), (1, 2), (1,), (7,)],
    PRIORITY: [(7,), (1, 2, 3), (1, 2), (1,)],
    SLRU: [(1, 2, 3), (7,), (1, 2), (1,)],  # 7 is in the protected segment by its hit
}


@clause("EVICT-2", policies=ALL_POLICIES, needs=[Capability.SNAPSHOT])
def test_inner_nodes_are_not_evicted_before_their_children(driver: Driver) -> None:
    put(driver, [1], priority=1)
    put(driver, [1, 2], priority=1)
    put(driver, [7], priority=0)
    use(driver, [7])
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
    use(driver, [1])
    first, second, third = TRIPLETS[driver.config.policy]
    receipt = driver.lock(anchors[first])
    found = victims(driver, 1)
    driver.unlock(receipt)
    found += victims(driver, 2)
    expected = [second, first, third]
    assert found == expected, f"EVICT-2: {first} is locked, then released: expected victims {expected}, got {found}"


@clause("EVICT-2", policies=[LFU, SLRU], needs=[Capability.SNAPSHOT])
def test_a_chunked_request_that_matches_again_is_not_a_new_hit(driver: Driver) -> None:
    for page in (1, 2, 3):
        put(driver, [page])
    for _ in range(3):
        driver.unlock(driver.lock(find(driver, [2])))
    for _ in range(2):
        use(driver, [1])
    # Without a hit 2 is an equal of 3, and was used after it.
    require_order(driver, [(3,), (2,), (1,)], "caching 1, 2, 3, three chunks of one request that uses 2, two hits of 1")


@clause("EVICT-2", policies=[PRIORITY], needs=[Capability.SNAPSHOT])
def test_a_later_insert_raises_the_priority_and_never_lowers_it(driver: Driver) -> None:
    for page, priority in ((1, 0), (2, 3), (3, 5), (1, 4), (3, 0)):
        put(driver, [page], priority=priority)
    require_order(driver, [(2,), (1,), (3,)], "caching 1, 2, 3 with priorities 0, 3, 5, then 1 with 4 and 3 with 0")


@clause("EVICT-2", needs=[Capability.SNAPSHOT])
def test_a_hit_of_a_prompt_is_a_use_of_its_prefixes(driver: Driver) -> None:
    for pages in ([1], [1, 2], [3]):
        put(driver, pages)
    use(driver, [1, 2])
    require_order(driver, [(3,), (1, 2), (1,)], "caching 1, (1, 2), 3, and a hit of (1, 2)")


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT])
@pytest.mark.parametrize("insert", [put, insert_fresh])
def test_an_insert_of_a_cached_prompt_is_a_use(driver: Driver, insert: Callable[[Driver, list[int]], object]) -> None:
    for page in (1, 2, 3):
        put(driver, [page])
    insert(driver, [1])
    require_order(driver, [(2,), (3,), (1,)], "caching 1, 2, 3, and 1 again")


# INS-8, MATCH-10: what a split leaves as it was. The part of a node that a request did not reach is no more recent.


@clause("MATCH-10", "INS-8", page_sizes=[1, 16], needs=[Capability.SNAPSHOT], bigram=True)
def test_a_use_that_ends_inside_a_node_is_a_use_of_its_first_part(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    put(driver, [4])
    # No state is inside the node: with MAMBA only a request that also leaves its own state there ends inside it.
    if has(driver, MAMBA):
        put(driver, [1, 2])
    else:
        use(driver, [1, 2])
    for expected in ({(1,), (1, 2), (4,)}, {(1,), (1, 2)}):
        driver.evict(FULL, 1)
        left = device_slots(driver, FULL).keys()
        assert left == expected, f"MATCH-10: (1, 2) of (1, 2, 3) was used last: expected {expected} left, got {left}"


@clause("EVICT-2", "INS-8", policies=[FIFO], needs=[Capability.SNAPSHOT])
def test_a_split_keeps_the_age_of_both_parts(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    put(driver, [4])
    put(driver, [1, 2])
    driver.evict(FULL, 3 * driver.config.page_size)
    left = device_slots(driver, FULL).keys()
    assert left == {(4,)}, f"INS-8: (1, 2, 3) came before 4, and was split since: expected 4 alone left, got {left}"


@clause("INS-8", "EVICT-10", components=(SWA, MAMBA), needs=[Capability.SNAPSHOT])
def test_a_split_keeps_how_recent_window_data_is(driver: Driver) -> None:
    wide = open_with_window(driver, 3)
    for pages in ([1, 2, 3], [9]):
        put(wide, pages)
    use(wide, [1, 2, 3])
    assert hit_pages(wide, [1, 8]) == 0, "MATCH-4: there is no state after page 1: expected a split and no hit"
    wide.evict(SWA, 1)
    left = device_slots(wide, SWA).keys()
    expected = prefixes(1, 2, 3)
    assert left == expected, f"INS-8: (1, 2, 3) was used after 9, and then split: expected {expected} left, got {left}"


@clause("INS-8", "EVICT-10", components=(SWA,), page_sizes=[16])
def test_an_insert_that_splits_a_node_leaves_the_window_behind_it_as_recent_as_it_was(driver: Driver) -> None:
    splits_without_a_match(driver, SWA)


@clause("INS-8", "EVICT-10", components=(MAMBA,), page_sizes=[16])
def test_an_insert_that_splits_a_node_leaves_the_state_behind_it_as_recent_as_it_was(driver: Driver) -> None:
    splits_without_a_match(driver, MAMBA)


def splits_without_a_match(driver: Driver, component: str) -> None:
    """Under every policy: a prompt is used before or after another one, and then split by an insert alone."""
    has_policies = Capability.POLICIES in driver.adapter.capabilities
    for policy in ALL_POLICIES if has_policies else [EvictionPolicy.LRU]:
        for first, second in (((1, 2, 3), (9,)), ((9,), (1, 2, 3))):
            other = open_variant(driver, policy=policy, sliding_window_size=window_tokens(driver.config, 3))
            for pages in (first, second):
                put(other, pages)
                use(other, pages)
            insert_fresh(other, [1, 8])
            other.evict(component, 1)
            # The second part of the split node is a leaf, as 9 is: the one that was used first goes.
            gone = {(1, 2, 3), (9,)} - device_slots(other, component).keys()
            assert gone == {first}, f"INS-8: {policy.value}: {first} was used before {second}, gone is {gone}"


@clause("EVICT-2", "INS-8", policies=[PRIORITY], needs=[Capability.SNAPSHOT])
def test_an_insert_that_ends_inside_a_node_raises_the_priority_of_its_first_part(driver: Driver) -> None:
    for pages, priority in (([1, 2], 2), ([3], 3), ([4], 4), ([1], 5)):
        put(driver, pages, priority=priority)
    expected = [(1, 2), (3,), (4,), (1,)]
    require_order(driver, expected, "caching (1, 2), 3 and 4 with priorities 2, 3 and 4, then 1 with 5")


# EVICT-10: SWA and MAMBA go by use, under every policy.


@clause("EVICT-10", components=(SWA,), needs=[Capability.SNAPSHOT, Capability.POLICIES], bigram=True)
@pytest.mark.parametrize("policy", ALL_POLICIES, ids=lambda policy: policy.value)
def test_window_data_is_evicted_by_use_whatever_the_policy(driver: Driver, policy: EvictionPolicy) -> None:
    goes_by_use(driver, SWA, policy)


@clause("EVICT-10", components=(MAMBA,), needs=[Capability.SNAPSHOT, Capability.POLICIES])
@pytest.mark.parametrize("policy", ALL_POLICIES, ids=lambda policy: policy.value)
def test_states_are_evicted_by_use_whatever_the_policy(driver: Driver, policy: EvictionPolicy) -> None:
    goes_by_use(driver, MAMBA, policy)


def goes_by_use(driver: Driver, component: str, policy: EvictionPolicy) -> None:
    """Three leaves, of which each policy but LRU evicts another one first or second."""
    other = open_variant(driver, policy=policy)
    for page, priority in ((1, 1), (2, 0), (3, 2)):
        put(other, [page], priority=priority)
    for page in (1, 1, 2):
        use(other, [page])
    for expected in ({(1,), (2,)}, {(2,)}):
        other.evict(component, 1)
        left = device_slots(other, component).keys()
        assert left == expected, f"EVICT-10: {policy.value}: 3, 1, 2 by use: expected {expected} left, got {left}"


# EVICT-2: the hits that LFU and SLRU use: each request that matched a node counts once.


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_request_counts_at_every_node_of_its_path(driver: Driver) -> None:
    for pages in ([1], [1, 2], [1, 3]):
        insert_fresh(driver, pages)
    for pages in ([1], [1, 2], [1, 2], [1, 3], [1, 3, 9]):
        driver.match(key_of(driver, pages))
    found, expected = hits(driver), {(1,): 5, (1, 2): 2, (1, 3): 2}
    assert found == expected, f"EVICT-2: of five requests expected hits {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_chunked_request_that_matches_again_is_not_counted(driver: Driver) -> None:
    insert_fresh(driver, [1])
    insert_fresh(driver, [1, 2])
    driver.match(key_of(driver, [1, 2]))
    for _ in range(3):
        find(driver, [1, 2])
    found, expected = hits(driver), {(1,): 1, (1, 2): 1}
    assert found == expected, f"EVICT-2: one request, which looked four times: expected {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_match_inside_a_node_counts_for_the_part_that_matched(driver: Driver) -> None:
    insert_fresh(driver, [1, 2, 3])
    driver.match(key_of(driver, [1, 2, 3]))
    driver.match(key_of(driver, [1, 2, 9]))
    insert_fresh(driver, [1, 2])
    driver.match(key_of(driver, [1, 2, 9]))
    found = {pages: count for pages, count in hits(driver).items() if len(pages) > 1}
    # With MAMBA the match that splits the node finds no state at its end, so only the other one is a hit.
    expected = {(1, 2): 2 if has(driver, MAMBA) else 3, (1, 2, 3): 1}
    assert found == expected, f"EVICT-2: one request for all, two for its beginning: expected {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_match_that_finds_nothing_is_not_counted(driver: Driver) -> None:
    insert_fresh(driver, [1])
    for pages in ([], [2], [2, 1]):
        driver.match(key_of(driver, pages))
    assert hits(driver) == {(1,): 0}, f"EVICT-2: no request matched it: expected no hits, got {hits(driver)}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS])
def test_the_parent_keeps_the_hits_of_an_evicted_child(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    for _ in range(3):
        driver.match(key_of(driver, [1, 2]))
    before = hits(driver)[1,]
    driver.evict(FULL, 1)
    assert hits(driver) == {(1,): before}, f"EVICT-2: {before} requests matched page 1, got {hits(driver)}"


# EVICT-3 to EVICT-5: which other components an eviction of one component takes with it.


def require_tombstone(driver: Driver, component: str) -> None:
    """An inner node loses a component and those after it, and the longer prompt still hits."""
    make_tombstone(driver, component)
    expected = set(driver.config.components) - evicted_with(driver, component)
    left = components_on_device(driver, TOMBSTONE)
    assert left == expected, f"EVICT-4: {component} of an inner node was evicted: expected {expected} left, got {left}"
    assert device_slots(driver, FULL).keys() == prefixes(*longer_prompt(driver)), (
        "EVICT-3: expected the FULL data of the inner node to stay"
    )
    find(driver, longer_prompt(driver))
    assert hit_pages(driver, TOMBSTONE) == 0, f"EVICT-3: {TOMBSTONE} lost its {component} data: expected no hit"


@clause("EVICT-3", "EVICT-4", components=(SWA,))
def test_swa_data_of_an_inner_node_leaves_a_tombstone(driver: Driver) -> None:
    require_tombstone(driver, SWA)


@clause("EVICT-3", "EVICT-4", components=(MAMBA,))
def test_the_state_of_an_inner_node_leaves_a_tombstone(driver: Driver) -> None:
    require_tombstone(driver, MAMBA)


@clause("EVICT-4")
def test_an_inner_node_keeps_the_components_of_higher_rank(driver: Driver) -> None:
    for component in (MAMBA, SWA):
        make_tombstone(driver, component)
        left = components_on_device(driver, TOMBSTONE)
        expected = {FULL} if component == SWA else {FULL, SWA}
        assert left == expected, f"EVICT-4: {component} was evicted there: expected {expected} left, got {left}"
        evict_all(driver)


@clause("EVICT-3", components=(SWA,), bigram=True)
def test_a_leaf_is_evicted_in_full_with_its_swa_data(driver: Driver) -> None:
    leaf_goes_as_a_whole(driver, SWA)


@clause("EVICT-3", components=(MAMBA,))
def test_a_leaf_is_evicted_in_full_with_its_state(driver: Driver) -> None:
    leaf_goes_as_a_whole(driver, MAMBA)


def leaf_goes_as_a_whole(driver: Driver, component: str) -> None:
    """Evict a component of a leaf: the leaf loses its data in every pool."""
    for page in (1, 2, 3):
        put(driver, [page])
    result = driver.evict(component, unit(driver, component))
    assert nodes(driver).keys() == {(2,), (3,)}, (
        f"EVICT-3: expected the oldest leaf to be evicted, left is {nodes(driver).keys()}"
    )
    expected = {name: unit(driver, name) for name in driver.config.components}
    assert result.freed == expected, f"EVICT-3: a leaf of one page frees {expected}, got {result}"


@clause("EVICT-3", components=(SWA,), bigram=True)
def test_evicting_the_last_window_of_an_unlocked_prompt_evicts_its_leaf(driver: Driver) -> None:
    put(driver, longer_prompt(driver))
    evict_all(driver, SWA)
    left = {pages for component in driver.config.components for pages in device_slots(driver, component)}
    assert not left, f"EVICT-3: without SWA data no match ends at the leaf: expected it to be removed, left is {left}"


@clause("EVICT-5", components=(SWA,))
def test_evicting_an_inner_node_keeps_the_nodes_below_it(driver: Driver) -> None:
    make_tombstone(driver, SWA)
    pages = longer_prompt(driver)
    receipt = lock(driver, pages)
    evict_all(driver)
    found = {component: device_slots(driver, component).keys() for component in (FULL, SWA)}
    driver.unlock(receipt)
    expected = {FULL: prefixes(*pages), SWA: prefixes(*pages) - prefixes(*TOMBSTONE)}
    assert found == expected, f"EVICT-5: a lock holds FULL up to the root and one window: {expected}, got {found}"


@clause("EVICT-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_full_data_is_evicted_from_the_leaves_up(driver: Driver) -> None:
    for count in range(1, 6):
        put(driver, range(1, count + 1))
    for count in range(4, 0, -1):
        driver.evict(FULL, 1)
        left = device_slots(driver, FULL).keys()
        expected = prefixes(*range(1, count + 1))
        assert left == expected, f"EVICT-5: after {5 - count} evictions expected {expected}, got {left}"


# EVICT-6: tombstones whose last child was removed.


def childless(driver: Driver, component: str) -> Handle:
    """Lock a tombstone and evict everything below it; returns the receipt, the only lock on the node."""
    receipt = driver.lock(make_tombstone(driver, component))
    evict_all(driver)
    kept = device_slots(driver, FULL).keys()
    assert kept == prefixes(*TOMBSTONE), f"EVICT-6: the lock holds {TOMBSTONE} and nothing else, left is {kept}"
    return receipt


def require_empty(driver: Driver, why: str) -> None:
    """The tree is empty."""
    assert not nodes(driver), f"EVICT-6: {why}: expected an empty tree, got {nodes(driver).keys()}"


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_an_swa_tombstone_is_removed_with_its_last_child(driver: Driver) -> None:
    goes_with_its_last_child(driver, SWA)


@clause("EVICT-6", components=(MAMBA,))
def test_a_mamba_tombstone_is_removed_with_its_last_child(driver: Driver) -> None:
    goes_with_its_last_child(driver, MAMBA)


def goes_with_its_last_child(driver: Driver, component: str) -> None:
    """A tombstone with two children stays when the first is removed, and is removed with the second."""
    make_tombstone(driver, component)
    put(driver, [*TOMBSTONE, 50], passed=len(TOMBSTONE))
    assert (*TOMBSTONE, 50) in device_slots(driver, FULL), "INS-1: a second child was cached below the tombstone"
    receipt = lock(driver, longer_prompt(driver))
    evict_all(driver, FULL)
    kept = device_slots(driver, FULL).keys()
    driver.unlock(receipt)
    expected = prefixes(*longer_prompt(driver))
    assert kept == expected, f"EVICT-6: one child is locked, so the tombstone stays: expected {expected}, got {kept}"
    evict_all(driver, FULL)
    require_empty(driver, "the last child was removed, and no match could end at the tombstone")


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_tombstones_are_removed_up_to_the_first_node_with_all_components(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2, 3, 4], passed=3)
    for pages in ([1, 2], [1, 2, 3]):
        driver.match(key_of(driver, pages), chunked=True)
    result = driver.evict(FULL, 1)
    left = nodes(driver).keys()
    assert left == {(1,)}, f"EVICT-6: page 1 holds all, 2 and 3 are tombstones: expected 1 alone to stay, got {left}"
    freed, expected = result.freed[FULL], 3 * driver.config.page_size
    assert freed == expected, f"EVICT-6: a leaf and two tombstones are {expected} slots, {result}"


@clause("EVICT-6", components=(MAMBA,))
def test_nodes_without_a_state_are_removed_up_to_the_first_that_has_one(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2, 3, 4])
    for pages in ([1, 2], [1, 2, 3]):
        driver.match(key_of(driver, pages), chunked=True)
    driver.evict(FULL, 1)
    left = nodes(driver).keys()
    assert left == {(1,)}, f"EVICT-6: a state lies after page 1, none after 2 and 3: expected 1 alone, got {left}"


@clause("EVICT-6", "LOCK-5", components=(SWA,))
def test_a_locked_swa_tombstone_is_removed_with_its_last_lock(driver: Driver) -> None:
    goes_with_its_last_lock(driver, SWA)


@clause("EVICT-6", "LOCK-5", components=(MAMBA,))
def test_a_locked_mamba_tombstone_is_removed_with_its_last_lock(driver: Driver) -> None:
    goes_with_its_last_lock(driver, MAMBA)


def goes_with_its_last_lock(driver: Driver, component: str) -> None:
    """A childless tombstone with two locks is removed when the second lock is released."""
    handle = make_tombstone(driver, component)
    receipts = [driver.lock(handle), driver.lock(handle)]
    evict_all(driver)
    for receipt in receipts:
        assert device_slots(driver, FULL).keys() == prefixes(*TOMBSTONE), "LOCK-5: expected a locked tombstone to stay"
        driver.unlock(receipt)
    require_empty(driver, "the last lock on a childless tombstone is released")


@clause("EVICT-6", "EVICT-3", components=(SWA,))
def test_swa_data_that_a_lock_on_a_leaf_skipped_can_be_evicted(driver: Driver) -> None:
    part_of_a_locked_leaf(driver, SWA)


@clause("EVICT-6", "EVICT-3", components=(MAMBA,))
def test_a_state_that_a_lock_on_a_leaf_skipped_can_be_evicted(driver: Driver) -> None:
    part_of_a_locked_leaf(driver, MAMBA)


def part_of_a_locked_leaf(driver: Driver, component: str) -> None:
    """A leaf whose FULL data is locked, but not this component: the component can be evicted, the leaf stays."""
    receipt = childless(driver, component)
    recompute(driver)
    assert locks(driver)[component, TOMBSTONE] == 0, f"LOCK-3: {component} data came after the lock: {locks(driver)}"
    result = driver.evict(component, 1)
    assert result.freed[component] > 0, f"EVICT-1: the {component} data of the leaf is not locked: {result}"
    assert result.freed[FULL] == 0, f"LOCK-5: the FULL data of the leaf is locked: {result}"
    evict_all(driver)
    assert device_slots(driver, FULL).keys() == prefixes(*TOMBSTONE), (
        "LOCK-5: expected the locked FULL data of the leaf to stay"
    )
    driver.unlock(receipt)
    require_empty(driver, "the leaf was a tombstone when its last lock was released")


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_a_recomputed_leaf_stays_when_its_lock_is_released(driver: Driver) -> None:
    receipt = childless(driver, SWA)
    recompute(driver)
    driver.unlock(receipt)
    assert hit_pages(driver, TOMBSTONE) == len(TOMBSTONE), "EVICT-6: expected a leaf with all components to stay"
    evict_all(driver)
    require_empty(driver, "the leaf is not locked")


@clause("EVICT-1", "EVICT-6", needs=[Capability.SIZES], components=(SWA,), page_sizes=[1, 16])
@pytest.mark.parametrize("asked", [FULL, SWA])
def test_one_eviction_removes_many_tombstones(driver: Driver, asked: str) -> None:
    for first in (10, 20):
        insert_fresh(driver, [first, first + 1, first + 2, first + 3], passed=3)
        for count in (1, 2):
            driver.match(key_of(driver, range(first, first + count)), chunked=True)
    result = driver.evict(asked, driver.config.capacity_tokens[asked])
    freed, expected = result.freed[FULL], 8 * driver.config.page_size
    assert freed == expected, f"EVICT-6: two chains of four pages are {expected} slots, {result}"
    require_empty(driver, "every chain was evictable")
