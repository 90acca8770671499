"""EVICT-1 to EVICT-6: how much an eviction on the device frees, in which order, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hicache.config import EvictionPolicy
from hicache.testing.adapter import Capability
from hicache.testing.configurations import ALL_POLICIES
from hicache.testing.contract import clause
from hicache.types import Component, Handle

from .scenario import FULL, MAMBA, SWA, TOMBSTONE, Scenario
from .snapshot_values import Pages, prefixes, snapshot_values

# EVICT-1: how much an eviction frees; it always ends.


LEAVES = (1, 2, 3, 4)


def put_leaves(driver: Scenario) -> None:
    """Cache four prompts of one page each."""
    for page in LEAVES:
        driver.insert_fresh([page])


def amounts(driver: Scenario, component: str) -> list[int]:
    """Slots to ask for: whole pages, and with several slots a page also parts of pages."""
    size = driver.unit(component)
    return sorted({1, size + 1, 3 * size})


@clause("EVICT-1", page_sizes=[1, 16], bigram=True)
def test_an_eviction_frees_the_whole_pages_that_were_asked_for(driver: Scenario) -> None:
    for component in driver.config.components:
        size = driver.unit(component)
        for asked in amounts(driver, component):
            put_leaves(driver)
            expected = -(-asked // size)
            result = driver.evict(component, asked)
            freed = result.freed[component]
            assert freed == expected * size, f"EVICT-1: {asked} of {component} asked in leaves of {size}: freed {freed}"
            assert result.victims == expected, f"EVICT-1: {expected} victims suffice for {asked}, got {result}"
            hits = sum(driver.hit_pages([page]) for page in LEAVES)
            assert hits == len(LEAVES) - expected, f"EVICT-1: {expected} of {len(LEAVES)} were to go, {hits} are left"
            driver.evict_all()


@clause("EVICT-1", bigram=True)
def test_no_victim_is_taken_after_the_last_one_needed(driver: Scenario) -> None:
    size = driver.config.page_size
    for pages in ([1, 11, 12], [2, 21, 22]):
        driver.put_pages(pages)
    driver.match(driver.key_of([2, 21, 22]))
    result = driver.evict(FULL, 1)
    # A leaf of several pages may be cut at the window's edge; the other prompt is not touched for it.
    assert result.freed[FULL] <= 3 * size, f"EVICT-1: one slot was asked, the first prompt has 3 pages: {result}"
    driver.find([2, 21, 22])
    assert driver.hit_pages([1, 11, 12]) < 3, "EVICT-2: the prompt that was used last is not the first to go"


@clause("EVICT-1", bigram=True)
def test_evicting_no_slots_and_more_slots_than_are_cached(driver: Scenario) -> None:
    for component in driver.config.components:
        put_leaves(driver)
        size, capacity = driver.unit(component), driver.config.capacity_tokens[component]
        for asked, expected in ((0, 0), (10 * capacity, len(LEAVES)), (capacity, 0)):
            result = driver.evict(component, asked)
            found = result.freed[component], result.victims
            assert found == (expected * size, expected), (
                f"EVICT-1: {asked} of {component} asked: {expected} go, {result}"
            )


@clause("EVICT-1", "EVICT-5", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.SIZES])
def test_evicting_one_slot_at_a_time_empties_the_cache(driver: Scenario) -> None:
    for component in driver.config.components:
        for pages in ([1], [1, 2], [1, 2, 3, 4], [1, 5], [6, 7]):
            driver.insert_fresh(pages)
        steps = 0
        while driver.adapter.sizes()[component].evictable:
            freed = driver.evict(component, 1).freed[component]
            assert freed, f"EVICT-1: {component} is evictable, and evicting one slot of it freed none"
            steps += 1
        assert steps >= 2, (
            f"EVICT-1: {component} is on several nodes: expected at least 2 evictions of one slot, got {steps}"
        )
        driver.evict_all()
        assert not driver.nodes(), f"EVICT-1: all was evictable, {driver.nodes().keys()} is left"


@clause("EVICT-1", page_sizes=[1, 16], needs=[Capability.SIZES], bigram=True)
def test_an_allocation_evicts_only_the_missing_pages(driver: Scenario) -> None:
    size = driver.config.page_size
    put_leaves(driver)
    paged = [component for component in driver.config.components if component != Component.MAMBA]
    free = min(driver.adapter.sizes()[component].free for component in paged)
    for missing in (0, 2):
        slots = driver.allocate(free + missing * size)
        assert slots is not None, f"EVICT-1: {missing} pages are missing, and evictable"
        left = sum(driver.hit_pages([page]) for page in LEAVES)
        assert left == len(LEAVES) - missing, f"EVICT-1: {missing} pages were missing, {left} of {len(LEAVES)} are left"
        driver.free(slots)
        put_leaves(driver)


@clause("EVICT-1", "POOL-3", needs=[Capability.SIZES], bigram=True)
def test_an_allocation_that_does_not_fit_evicts_nothing(driver: Scenario) -> None:
    put_leaves(driver)
    receipt = driver.lock_pages(LEAVES[:1])
    too_much = driver.config.capacity_tokens[FULL]
    assert driver.allocate(too_much) is None, f"LOCK-5: {too_much} slots were given, though some are locked"
    left = sum(driver.hit_pages([page]) for page in LEAVES)
    assert left == len(LEAVES), f"EVICT-1: nothing was gained by an eviction, and {left} of {len(LEAVES)} are left"
    driver.unlock(receipt)


@clause("EVICT-1", components=(MAMBA,))
def test_a_state_is_evicted_when_one_is_missing(driver: Scenario) -> None:
    put_leaves(driver)
    free = driver.config.capacity_tokens[MAMBA] - len(LEAVES)
    for taken in range(1, free + 3):
        assert driver.allocate_state() is not None, (
            f"EVICT-1: {free} states are free, 4 evictable; number {taken}: None"
        )
        left, expected = sum(driver.hit_pages([page]) for page in LEAVES), min(4, 4 + free - taken)
        assert left == expected, f"EVICT-1: {taken} states taken, {free} were free: {expected} of 4 stay, not {left}"


@clause("EVICT-1", "LOCK-5", components=(MAMBA,), needs=[Capability.SNAPSHOT])
def test_without_a_free_or_evictable_state_the_answer_is_none(driver: Scenario) -> None:
    put_leaves(driver)
    anchors = [driver.find([page]) for page in LEAVES]
    receipts = [driver.lock(anchor) for anchor in anchors]
    list(iter(driver.allocate_state, None))
    before = snapshot_values(driver.snapshot())
    answers = driver.allocate_state(), driver.fork_state(anchors[0]), driver.evict(MAMBA, 1).victims
    assert answers == (None, None, 0), f"EVICT-1: every state is held or locked; allocate, fork, evict gave {answers}"
    assert snapshot_values(driver.snapshot()) == before, "EVICT-1: a failed allocation of a state changed the cache"
    for receipt in receipts:
        driver.unlock(receipt)


@clause("EVICT-1", "LOCK-5", bigram=True)
def test_when_everything_is_locked_no_verb_raises(driver: Scenario) -> None:
    put_leaves(driver)
    receipts = [driver.lock_pages([page]) for page in LEAVES]
    for component in driver.config.components:
        result = driver.evict(component, driver.unit(component))
        assert (result.victims, result.freed[component]) == (0, 0), f"EVICT-1: all is locked, yet {result}"
    for page in LEAVES:
        driver.find([page])
    for receipt in receipts:
        driver.unlock(receipt)


# EVICT-2: the order in which leaves are evicted, worked out by hand for each policy.


LRU, LFU, FIFO, FILO, MRU, PRIORITY, SLRU = ALL_POLICIES


def victims(driver: Scenario, count: int) -> list[Pages]:
    """Evict one page of FULL so many times; returns the evicted prompts in order."""
    order: list[Pages] = []
    for _ in range(count):
        before = driver.nodes().keys()
        driver.evict(FULL, 1)
        order += sorted(before - driver.nodes().keys())
    return order


def require_order(driver: Scenario, expected: list[Pages], history: str) -> None:
    """Evict page by page, and compare the order with the expected one."""
    found = victims(driver, len(expected))
    policy = driver.config.policy.value
    assert found == expected, f"EVICT-2: {policy} after {history}: expected victims {expected}, got {found}"


@clause("EVICT-2", components=(FULL,), alone=True, page_sizes=[1, 16])
def test_prompts_that_are_looked_up_are_evicted_in_the_order_of_use(driver: Scenario) -> None:
    for page in (1, 2, 3):
        driver.put_pages([page])
    driver.use([1])
    order = (2, 3, 1)
    for count in range(1, len(order) + 1):
        driver.evict(FULL, 1)
        # Looked up in the order of use, so that the look-ups do not change it.
        left = [page for page in order if driver.hit_pages([page])]
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
def test_leaves_are_evicted_in_the_order_of_the_policy(driver: Scenario) -> None:
    driver.put_pages([1], priority=2)
    driver.put_pages([2], priority=0)
    driver.put_pages([3], priority=1)
    driver.use([1])
    driver.put_pages([4], priority=0)
    for page in (3, 3, 2):
        driver.use([page])
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
def test_a_parent_is_a_leaf_once_its_children_are_gone(driver: Scenario) -> None:
    driver.put_pages([1], priority=0)
    driver.put_pages([1, 2], priority=1)
    driver.put_pages([4], priority=2)
    driver.put_pages([5], priority=3)
    driver.use([4])
    driver.use([1, 2])
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
def test_inner_nodes_are_not_evicted_before_their_children(driver: Scenario) -> None:
    driver.put_pages([1], priority=1)
    driver.put_pages([1, 2], priority=1)
    driver.put_pages([7], priority=0)
    driver.use([7])
    driver.put_pages([1, 2, 3], priority=1)
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
def test_a_locked_leaf_is_skipped_and_returns_to_its_place_when_released(driver: Scenario) -> None:
    anchors: dict[Pages, Handle] = {}
    for page in (1, 2, 3):
        driver.put_pages([page], priority=page)
        anchors[page,] = driver.find([page])
    driver.use([1])
    first, second, third = TRIPLETS[driver.config.policy]
    receipt = driver.lock(anchors[first])
    found = victims(driver, 1)
    driver.unlock(receipt)
    driver.use([1])  # The lock and its release may have been a use of the leaf (MATCH-10).
    found += victims(driver, 2)
    expected = [second, first, third]
    assert found == expected, f"EVICT-2: {first} is locked, then released: expected victims {expected}, got {found}"


@clause("EVICT-2", policies=[LFU, SLRU], needs=[Capability.SNAPSHOT])
def test_a_chunked_request_that_matches_again_is_not_a_new_hit(driver: Scenario) -> None:
    for page in (1, 2, 3):
        driver.put_pages([page])
    for _ in range(3):
        driver.unlock(driver.lock(driver.find([2])))
    for _ in range(2):
        driver.use([1])
    # Without a hit 2 is an equal of 3, and was used after it.
    require_order(driver, [(3,), (2,), (1,)], "caching 1, 2, 3, three chunks of one request that uses 2, two hits of 1")


@clause("EVICT-2", policies=[PRIORITY], needs=[Capability.SNAPSHOT])
def test_a_later_insert_raises_the_priority_and_never_lowers_it(driver: Scenario) -> None:
    for page, priority in ((1, 0), (2, 3), (3, 5), (1, 4), (3, 0)):
        driver.put_pages([page], priority=priority)
    require_order(driver, [(2,), (1,), (3,)], "caching 1, 2, 3 with priorities 0, 3, 5, then 1 with 4 and 3 with 0")


@clause("EVICT-2", needs=[Capability.SNAPSHOT])
def test_a_hit_of_a_prompt_is_a_use_of_its_prefixes(driver: Scenario) -> None:
    for pages in ([1], [1, 2], [3]):
        driver.put_pages(pages)
    driver.use([1, 2])
    require_order(driver, [(3,), (1, 2), (1,)], "caching 1, (1, 2), 3, and a hit of (1, 2)")


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT])
@pytest.mark.parametrize("insert", [Scenario.put_pages, Scenario.insert_fresh], ids=["put", "insert_fresh"])
def test_an_insert_of_a_cached_prompt_is_a_use(
    driver: Scenario, insert: Callable[[Scenario, list[int]], object]
) -> None:
    for page in (1, 2, 3):
        driver.put_pages([page])
    insert(driver, [1])
    require_order(driver, [(2,), (3,), (1,)], "caching 1, 2, 3, and 1 again")


# INS-8, MATCH-10: what a split leaves as it was. The part of a node that a request did not reach is no more recent.


@clause("MATCH-10", "INS-8", page_sizes=[1, 16], needs=[Capability.SNAPSHOT], bigram=True)
def test_a_use_that_ends_inside_a_node_is_a_use_of_its_first_part(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    driver.put_pages([4])
    # No state is inside the node: with MAMBA only a request that also leaves its own state there ends inside it.
    if driver.has(MAMBA):
        driver.put_pages([1, 2])
    else:
        driver.use([1, 2])
    for expected in ({(1,), (1, 2), (4,)}, {(1,), (1, 2)}):
        driver.evict(FULL, 1)
        left = driver.device_slots(FULL).keys()
        assert left == expected, f"MATCH-10: (1, 2) of (1, 2, 3) was used last: expected {expected} left, got {left}"


@clause("EVICT-2", "INS-8", policies=[FIFO], needs=[Capability.SNAPSHOT])
def test_a_split_keeps_the_age_of_both_parts(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    driver.put_pages([4])
    driver.put_pages([1, 2])
    driver.evict(FULL, 3 * driver.config.page_size)
    left = driver.device_slots(FULL).keys()
    assert left == {(4,)}, f"INS-8: (1, 2, 3) came before 4, and was split since: expected 4 alone left, got {left}"


@clause("INS-8", "EVICT-10", components=(SWA, MAMBA), needs=[Capability.SNAPSHOT])
def test_a_split_keeps_how_recent_window_data_is(driver: Scenario) -> None:
    wide = driver.open_with_window(3)
    for pages in ([1, 2, 3], [9]):
        wide.put_pages(pages)
    wide.use([1, 2, 3])
    assert wide.hit_pages([1, 8]) == 0, "MATCH-4: there is no state after page 1: expected a split and no hit"
    wide.evict(SWA, 1)
    left = wide.device_slots(SWA).keys()
    expected = prefixes(1, 2, 3)
    assert left == expected, f"INS-8: (1, 2, 3) was used after 9, and then split: expected {expected} left, got {left}"


@clause("INS-8", "EVICT-10", components=(SWA,), page_sizes=[16])
def test_an_insert_that_splits_a_node_leaves_the_window_behind_it_as_recent_as_it_was(driver: Scenario) -> None:
    splits_without_a_match(driver, SWA)


@clause("INS-8", "EVICT-10", components=(MAMBA,), page_sizes=[16])
def test_an_insert_that_splits_a_node_leaves_the_state_behind_it_as_recent_as_it_was(driver: Scenario) -> None:
    splits_without_a_match(driver, MAMBA)


def splits_without_a_match(driver: Scenario, component: str) -> None:
    """Under every policy: a prompt is used before or after another one, and then split by an insert alone."""
    has_policies = Capability.POLICIES in driver.adapter.capabilities
    for policy in ALL_POLICIES if has_policies else [EvictionPolicy.LRU]:
        for first, second in (((1, 2, 3), (9,)), ((9,), (1, 2, 3))):
            other = driver.open_variant(policy=policy, sliding_window_size=driver.window_tokens(3))
            for pages in (first, second):
                other.put_pages(pages)
                other.use(pages)
            other.insert_fresh([1, 8])
            other.evict(component, 1)
            # The second part of the split node is a leaf, as 9 is: the one that was used first goes.
            gone = {(1, 2, 3), (9,)} - other.device_slots(component).keys()
            assert gone == {first}, f"INS-8: {policy.value}: {first} was used before {second}, gone is {gone}"


@clause("EVICT-2", "INS-8", policies=[PRIORITY], needs=[Capability.SNAPSHOT])
def test_an_insert_that_ends_inside_a_node_raises_the_priority_of_its_first_part(driver: Scenario) -> None:
    for pages, priority in (([1, 2], 2), ([3], 3), ([4], 4), ([1], 5)):
        driver.put_pages(pages, priority=priority)
    expected = [(1, 2), (3,), (4,), (1,)]
    require_order(driver, expected, "caching (1, 2), 3 and 4 with priorities 2, 3 and 4, then 1 with 5")


# EVICT-10: SWA and MAMBA go by use, under every policy.


@clause("EVICT-10", components=(SWA,), needs=[Capability.SNAPSHOT, Capability.POLICIES], bigram=True)
@pytest.mark.parametrize("policy", ALL_POLICIES, ids=lambda policy: policy.value)
def test_window_data_is_evicted_by_use_whatever_the_policy(driver: Scenario, policy: EvictionPolicy) -> None:
    goes_by_use(driver, SWA, policy)


@clause("EVICT-10", components=(MAMBA,), needs=[Capability.SNAPSHOT, Capability.POLICIES])
@pytest.mark.parametrize("policy", ALL_POLICIES, ids=lambda policy: policy.value)
def test_states_are_evicted_by_use_whatever_the_policy(driver: Scenario, policy: EvictionPolicy) -> None:
    goes_by_use(driver, MAMBA, policy)


def goes_by_use(driver: Scenario, component: str, policy: EvictionPolicy) -> None:
    """Three leaves, of which each policy but LRU evicts another one first or second."""
    other = driver.open_variant(policy=policy)
    for page, priority in ((1, 1), (2, 0), (3, 2)):
        other.put_pages([page], priority=priority)
    for page in (1, 1, 2):
        other.use([page])
    for expected in ({(1,), (2,)}, {(2,)}):
        other.evict(component, 1)
        left = other.device_slots(component).keys()
        assert left == expected, f"EVICT-10: {policy.value}: 3, 1, 2 by use: expected {expected} left, got {left}"


# EVICT-2: the hits that LFU and SLRU use: each request that matched a node counts once.


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_request_counts_at_every_node_of_its_path(driver: Scenario) -> None:
    for pages in ([1], [1, 2], [1, 3]):
        driver.insert_fresh(pages)
    for pages in ([1], [1, 2], [1, 2], [1, 3], [1, 3, 9]):
        driver.match(driver.key_of(pages))
    found, expected = driver.hits(), {(1,): 5, (1, 2): 2, (1, 3): 2}
    assert found == expected, f"EVICT-2: of five requests expected hits {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_chunked_request_that_matches_again_is_not_counted(driver: Scenario) -> None:
    driver.insert_fresh([1])
    driver.insert_fresh([1, 2])
    driver.match(driver.key_of([1, 2]))
    for _ in range(3):
        driver.find([1, 2])
    found, expected = driver.hits(), {(1,): 1, (1, 2): 1}
    assert found == expected, f"EVICT-2: one request, which looked four times: expected {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_match_inside_a_node_counts_for_the_part_that_matched(driver: Scenario) -> None:
    driver.insert_fresh([1, 2, 3])
    driver.match(driver.key_of([1, 2, 3]))
    driver.match(driver.key_of([1, 2, 9]))
    driver.insert_fresh([1, 2])
    driver.match(driver.key_of([1, 2, 9]))
    found = {pages: count for pages, count in driver.hits().items() if len(pages) > 1}
    # With MAMBA the match that splits the node finds no state at its end, so only the other one is a hit.
    expected = {(1, 2): 2 if driver.has(MAMBA) else 3, (1, 2, 3): 1}
    assert found == expected, f"EVICT-2: one request for all, two for its beginning: expected {expected}, got {found}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS], bigram=True)
def test_a_match_that_finds_nothing_is_not_counted(driver: Scenario) -> None:
    driver.insert_fresh([1])
    for pages in ([], [2], [2, 1]):
        driver.match(driver.key_of(pages))
    assert driver.hits() == {(1,): 0}, f"EVICT-2: no request matched it: expected no hits, got {driver.hits()}"


@clause("EVICT-2", page_sizes=[1, 16], needs=[Capability.SNAPSHOT, Capability.HITS])
def test_the_parent_keeps_the_hits_of_an_evicted_child(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2])
    for _ in range(3):
        driver.match(driver.key_of([1, 2]))
    before = driver.hits()[1,]
    driver.evict(FULL, 1)
    assert driver.hits() == {(1,): before}, f"EVICT-2: {before} requests matched page 1, got {driver.hits()}"


# EVICT-3 to EVICT-5: which other components an eviction of one component takes with it.


@clause("EVICT-3", "EVICT-4", each=(SWA, MAMBA))
def test_an_inner_node_that_loses_a_component_becomes_a_tombstone(driver: Scenario, component: str) -> None:
    """An inner node loses a component and those after it, and the longer prompt still hits."""
    driver.make_tombstone(component)
    expected = set(driver.config.components) - driver.evicted_with(component)
    left = driver.components_on_device(TOMBSTONE)
    assert left == expected, f"EVICT-4: {component} of an inner node was evicted: expected {expected} left, got {left}"
    assert driver.device_slots(FULL).keys() == prefixes(*driver.longer_prompt()), (
        "EVICT-3: expected the FULL data of the inner node to stay"
    )
    driver.find(driver.longer_prompt())
    assert driver.hit_pages(TOMBSTONE) == 0, f"EVICT-3: {TOMBSTONE} lost its {component} data: expected no hit"


@clause("EVICT-4")
def test_an_inner_node_keeps_the_components_of_higher_rank(driver: Scenario) -> None:
    for component in (MAMBA, SWA):
        driver.make_tombstone(component)
        left = driver.components_on_device(TOMBSTONE)
        expected = {FULL} if component == SWA else {FULL, SWA}
        assert left == expected, f"EVICT-4: {component} was evicted there: expected {expected} left, got {left}"
        driver.evict_all()


@clause("EVICT-3", each=(SWA, MAMBA), bigram=True)
def test_a_leaf_is_evicted_in_full(driver: Scenario, component: str) -> None:
    """Evict a component of a leaf: the leaf loses its data in every pool."""
    for page in (1, 2, 3):
        driver.put_pages([page])
    result = driver.evict(component, driver.unit(component))
    assert driver.nodes().keys() == {(2,), (3,)}, (
        f"EVICT-3: expected the oldest leaf to be evicted, left is {driver.nodes().keys()}"
    )
    expected = {name: driver.unit(name) for name in driver.config.components}
    assert result.freed == expected, f"EVICT-3: a leaf of one page frees {expected}, got {result}"


@clause("EVICT-3", components=(SWA,), bigram=True)
def test_evicting_the_last_window_of_an_unlocked_prompt_evicts_its_leaf(driver: Scenario) -> None:
    driver.put_pages(driver.longer_prompt())
    driver.evict_all(SWA)
    left = {pages for component in driver.config.components for pages in driver.device_slots(component)}
    assert not left, f"EVICT-3: without SWA data no match ends at the leaf: expected it to be removed, left is {left}"


@clause("EVICT-5", components=(SWA,))
def test_evicting_an_inner_node_keeps_the_nodes_below_it(driver: Scenario) -> None:
    driver.make_tombstone(SWA)
    pages = driver.longer_prompt()
    receipt = driver.lock_pages(pages)
    driver.evict_all()
    found = {component: driver.device_slots(component).keys() for component in (FULL, SWA)}
    driver.unlock(receipt)
    expected = {FULL: prefixes(*pages), SWA: prefixes(*pages) - prefixes(*TOMBSTONE)}
    assert found == expected, f"EVICT-5: a lock holds FULL up to the root and one window: {expected}, got {found}"


@clause("EVICT-5", needs=[Capability.SNAPSHOT], bigram=True)
def test_full_data_is_evicted_from_the_leaves_up(driver: Scenario) -> None:
    for count in range(1, 6):
        driver.put_pages(range(1, count + 1))
    for count in range(4, 0, -1):
        driver.evict(FULL, 1)
        left = driver.device_slots(FULL).keys()
        expected = prefixes(*range(1, count + 1))
        assert left == expected, f"EVICT-5: after {5 - count} evictions expected {expected}, got {left}"


# EVICT-6: tombstones whose last child was removed.


def childless(driver: Scenario, component: str) -> Handle:
    """Lock a tombstone and evict everything below it; returns the receipt, the only lock on the node."""
    receipt = driver.lock(driver.make_tombstone(component))
    driver.evict_all()
    kept = driver.device_slots(FULL).keys()
    assert kept == prefixes(*TOMBSTONE), f"EVICT-6: the lock holds {TOMBSTONE} and nothing else, left is {kept}"
    return receipt


def require_empty(driver: Scenario, why: str) -> None:
    """The tree is empty."""
    assert not driver.nodes(), f"EVICT-6: {why}: expected an empty tree, got {driver.nodes().keys()}"


@clause("EVICT-6", each=(SWA, MAMBA), bigram=True)
def test_a_tombstone_is_removed_with_its_last_child(driver: Scenario, component: str) -> None:
    """A tombstone with two children stays when the first is removed, and is removed with the second."""
    driver.make_tombstone(component)
    driver.put_pages([*TOMBSTONE, 50], passed=len(TOMBSTONE))
    assert (*TOMBSTONE, 50) in driver.device_slots(FULL), "INS-1: a second child was cached below the tombstone"
    receipt = driver.lock_pages(driver.longer_prompt())
    driver.evict_all(FULL)
    kept = driver.device_slots(FULL).keys()
    driver.unlock(receipt)
    expected = prefixes(*driver.longer_prompt())
    assert kept == expected, f"EVICT-6: one child is locked, so the tombstone stays: expected {expected}, got {kept}"
    driver.evict_all(FULL)
    require_empty(driver, "the last child was removed, and no match could end at the tombstone")


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_tombstones_are_removed_up_to_the_first_node_with_all_components(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2, 3, 4], passed=3)
    for pages in ([1, 2], [1, 2, 3]):
        driver.match(driver.key_of(pages), chunked=True)
    result = driver.evict(FULL, 1)
    left = driver.nodes().keys()
    assert left == {(1,)}, f"EVICT-6: page 1 holds all, 2 and 3 are tombstones: expected 1 alone to stay, got {left}"
    freed, expected = result.freed[FULL], 3 * driver.config.page_size
    assert freed == expected, f"EVICT-6: a leaf and two tombstones are {expected} slots, {result}"


@clause("EVICT-6", components=(MAMBA,))
def test_nodes_without_a_state_are_removed_up_to_the_first_that_has_one(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2, 3, 4])
    for pages in ([1, 2], [1, 2, 3]):
        driver.match(driver.key_of(pages), chunked=True)
    driver.evict(FULL, 1)
    left = driver.nodes().keys()
    assert left == {(1,)}, f"EVICT-6: a state lies after page 1, none after 2 and 3: expected 1 alone, got {left}"


@clause("EVICT-6", "LOCK-5", each=(SWA, MAMBA))
def test_a_locked_tombstone_is_removed_with_its_last_lock(driver: Scenario, component: str) -> None:
    """A childless tombstone with two locks is removed when the second lock is released."""
    handle = driver.make_tombstone(component)
    receipts = [driver.lock(handle), driver.lock(handle)]
    driver.evict_all()
    for receipt in receipts:
        assert driver.device_slots(FULL).keys() == prefixes(*TOMBSTONE), "LOCK-5: expected a locked tombstone to stay"
        driver.unlock(receipt)
    require_empty(driver, "the last lock on a childless tombstone is released")


@clause("EVICT-6", "EVICT-3", each=(SWA, MAMBA))
def test_data_that_a_lock_on_a_leaf_skipped_can_be_evicted(driver: Scenario, component: str) -> None:
    """A leaf whose FULL data is locked, but not this component: the component can be evicted, the leaf stays."""
    receipt = childless(driver, component)
    driver.recompute()
    assert driver.all_locks()[component, TOMBSTONE] == 0, (
        f"LOCK-3: {component} data came after the lock: {driver.all_locks()}"
    )
    result = driver.evict(component, 1)
    assert result.freed[component] > 0, f"EVICT-1: the {component} data of the leaf is not locked: {result}"
    assert result.freed[FULL] == 0, f"LOCK-5: the FULL data of the leaf is locked: {result}"
    driver.evict_all()
    assert driver.device_slots(FULL).keys() == prefixes(*TOMBSTONE), (
        "LOCK-5: expected the locked FULL data of the leaf to stay"
    )
    driver.unlock(receipt)
    require_empty(driver, "the leaf was a tombstone when its last lock was released")


@clause("EVICT-6", components=(SWA,), bigram=True)
def test_a_recomputed_leaf_stays_when_its_lock_is_released(driver: Scenario) -> None:
    receipt = childless(driver, SWA)
    driver.recompute()
    driver.unlock(receipt)
    assert driver.hit_pages(TOMBSTONE) == len(TOMBSTONE), "EVICT-6: expected a leaf with all components to stay"
    driver.evict_all()
    require_empty(driver, "the leaf is not locked")


@clause("EVICT-1", "EVICT-6", needs=[Capability.SIZES], components=(SWA,), page_sizes=[1, 16])
@pytest.mark.parametrize("asked", [FULL, SWA])
def test_one_eviction_removes_many_tombstones(driver: Scenario, asked: str) -> None:
    for first in (10, 20):
        driver.insert_fresh([first, first + 1, first + 2, first + 3], passed=3)
        for count in (1, 2):
            driver.match(driver.key_of(range(first, first + count)), chunked=True)
    result = driver.evict(asked, driver.config.capacity_tokens[asked])
    freed, expected = result.freed[FULL], 8 * driver.config.page_size
    assert freed == expected, f"EVICT-6: two chains of four pages are {expected} slots, {result}"
    require_empty(driver, "every chain was evictable")
