"""MATCH: the longest cached prefix, where it ends, and that a match changes only recency and hits."""

from __future__ import annotations

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import Key, Namespace

from .scenario import FULL, MAMBA, SWA, evict_all, has, hit_pages, key_of, put
from .tree_view import device_ownership, free_slots, lock_counts, nodes

PROBES: dict[tuple[int, ...], tuple[int, int]] = {
    (1, 2, 3): (3, 3),
    (1, 2, 3, 9): (3, 3),
    (1, 2, 9): (2, 0),
    (1, 2): (2, 0),
    (1, 9, 3): (1, 0),
    (1, 2, 4): (3, 0),
    (1, 2, 4, 5, 6): (4, 4),
    (2, 3): (0, 0),
    (9,): (0, 0),
}
"""Pages found when [1, 2, 3] and [1, 2, 4, 5] are cached: without MAMBA, and with a state at the end of both."""


@clause("MATCH-1", bigram=True)
def test_the_longest_prefix_is_found_at_whose_end_all_components_are_valid(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    put(driver, [1, 2, 4, 5])
    for prompt, (without_states, with_states) in PROBES.items():
        expected = with_states if has(driver, MAMBA) else without_states
        found = hit_pages(driver, prompt)
        assert found == expected, f"MATCH-1: of pages {prompt} expected {expected}, found {found}"


@clause("MATCH-1", needs=[Capability.PAGED])
def test_a_page_that_differs_in_one_token_is_not_found(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    page = driver.config.page_size
    for position in (page, 2 * page - 1):
        tokens = driver.prompt([1, 2])
        tokens[position] += 1_000
        found = len(driver.match(driver.key(tokens)).device_indices)
        assert found == page, f"MATCH-1: token {position} differs: expected {page}, found {found}"


@clause("MATCH-1", bigram=True)
def test_prompts_that_share_a_prefix_find_the_same_slots(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [1, 2, 3])
    shorter, longer = (driver.match(key_of(driver, pages)).device_indices for pages in ([1, 2], [1, 2, 3]))
    count = 2 * driver.config.page_size
    assert len(shorter) == count, f"MATCH-1: {count} expected, found {len(shorter)}"
    assert longer[:count].tolist() == shorter.tolist(), f"MATCH-1: {longer.tolist()} begins unlike {shorter.tolist()}"


@clause("MATCH-1", needs=[Capability.REQUESTS], bigram=True)
def test_a_request_does_not_take_the_slots_of_its_own_prefix(driver: Driver) -> None:
    # The prefix is the least recently used node of a full cache: other nodes must be evicted for the rest.
    room = driver.config.capacity_tokens[SWA if has(driver, SWA) else FULL] // driver.config.page_size
    put(driver, [1, 2])
    put(driver, list(range(10, 10 + room - 2)))
    admission = driver.admit(driver.key([*driver.prompt([1, 2, 3, 4]), 7]))
    assert admission is not None, "MATCH-1: five pages fit when the other prompt goes"
    expected = 2 * driver.config.page_size
    assert admission.cached_tokens == expected, f"MATCH-1: expected {expected} cached, got {admission.cached_tokens}"
    driver.finish(admission.request)


@clause("MATCH-2", bigram=True)
def test_full_is_valid_where_it_has_device_data(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [1, 2, 3])
    before = hit_pages(driver, [1, 2, 3])
    driver.evict(FULL, driver.config.page_size)
    after = hit_pages(driver, [1, 2, 3])
    assert (before, after) == (3, 2), f"MATCH-2: the third page had data and lost it, found {before} and then {after}"


@clause("MATCH-6", needs=[Capability.SNAPSHOT], bigram=True)
def test_best_match_and_device_anchor_are_one_node(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [1, 2, 3])
    found = driver.match(key_of(driver, [1, 2, 9]))
    shown = []
    for handle in (found.device_anchor, found.best_match):
        receipt = driver.lock(handle)
        shown.append(lock_counts(driver.snapshot(), driver.config))
        driver.unlock(receipt)
    assert shown[0], "MATCH-6: two pages were found, and a lock holds them"
    assert shown[0] == shown[1], f"MATCH-6: the anchor's lock holds {shown[0]}, the best match's {shown[1]}"
    on_host = [found.host_hit_length, *found.component_host_hit_lengths.values()]
    assert not any(on_host), f"MATCH-6: without a host tier nothing is found on it, got {on_host}"


@clause("MATCH-7", bigram=True)
def test_a_match_ends_before_an_evicted_node(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [1, 2, 3])
    driver.evict(FULL, driver.config.page_size)
    assert hit_pages(driver, [1, 2, 3, 4]) == 2, "MATCH-7: the third page is gone, the first two are not"
    evict_all(driver)
    assert hit_pages(driver, [1, 2, 3]) == 0, "MATCH-7: all is gone"
    put(driver, [1, 2, 3])
    assert hit_pages(driver, [1, 2, 3]) == 3, "MATCH-7: what was evicted can be cached again"


@clause("MATCH-8", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_match_that_ends_inside_a_node_splits_it(driver: Driver) -> None:
    put(driver, [1, 2, 3, 4, 5, 6])
    for boundary in ((1, 2, 3), (1,), (1, 2, 3, 4, 5)):
        hit_pages(driver, [*boundary, 9])
        ends = set(nodes(driver))
        assert {boundary, (1, 2, 3, 4, 5, 6)} <= ends, f"MATCH-8: {boundary} is the end of a node, ends are {ends}"


@clause("MATCH-8", needs=[Capability.PAGED, Capability.SNAPSHOT], bigram=True)
def test_a_match_that_ends_inside_a_page_ends_before_it(driver: Driver) -> None:
    put(driver, [1, 2, 3])
    tokens = driver.prompt([1, 2, 3])
    tokens[-1] += 1_000
    driver.match(driver.key(tokens))
    ends = {node.end for node in driver.snapshot().nodes}
    assert 2 * driver.config.page_size in ends, f"MATCH-8: two pages are whole, nodes end at {ends}"


@clause("MATCH-8", needs=[Capability.SNAPSHOT, Capability.SIZES], bigram=True)
def test_a_lock_on_a_match_inside_a_node_holds_only_what_was_found(driver: Driver) -> None:
    pool = free_slots(driver.snapshot())
    put(driver, [1, 2, 3, 4])
    found = driver.match(key_of(driver, [1, 2, 9]))
    receipt = driver.lock(found.device_anchor)
    protected = driver.adapter.sizes()[FULL].protected
    assert protected == len(found.device_indices), f"MATCH-8: {len(found.device_indices)} found, {protected} protected"
    put(driver, [1, 2, 9])
    driver.unlock(receipt)
    left = {component: sizes.protected for component, sizes in driver.adapter.sizes().items()}
    assert not any(left.values()), f"MATCH-8: nothing is locked any more, protected are {left}"
    evict_all(driver)
    assert free_slots(driver.snapshot()) == pool, "MATCH-8: a lock was left behind in the tree"


@clause("MATCH-9", needs=[Capability.SIZES, Capability.EVENTS], bigram=True)
def test_matching_moves_no_data_and_takes_no_lock(driver: Driver) -> None:
    put(driver, [1, 2, 3, 4])
    put(driver, [1, 2, 5])
    receipt = driver.lock(driver.match(key_of(driver, [1, 2, 5])).device_anchor)
    before = _everything_but_recency(driver)
    for pages in ([1, 2, 5], [1, 2, 3, 9], [1], [1, 2, 3, 4, 5], [9], []):
        for chunked in (False, True):
            driver.match(key_of(driver, pages), chunked=chunked)
        after = _everything_but_recency(driver)
        assert after == before, f"MATCH-9: a match of pages {pages} changed {before} to {after}"
    driver.unlock(receipt)


@clause("MATCH-14", needs=[Capability.SNAPSHOT], bigram=True)
def test_an_empty_or_unknown_key_gives_the_root(driver: Driver) -> None:
    unknown = Namespace(lora="unknown", salt=None, tenant=None)
    keys = {"empty": key_of(driver, []), "no token": driver.key([]), "unknown": key_of(driver, [9, 1])}
    if Capability.NAMESPACES in driver.adapter.capabilities:
        keys["unknown namespace"] = driver.key(driver.prompt([1, 2]), unknown)
    for prompt in ([], [1, 2]):
        put(driver, prompt)
        for name, key in keys.items():
            _require_root(driver, key, name)


def _require_root(driver: Driver, key: Key, name: str) -> None:
    before = device_ownership(driver.snapshot(), driver.config)
    found = driver.match(key)
    assert len(found.device_indices) == 0, f"MATCH-14: {name} key: {found.device_indices.tolist()} found"
    receipt = driver.lock(found.device_anchor)
    assert device_ownership(driver.snapshot(), driver.config) == before, (
        f"MATCH-14: {name} key: its node is not the root"
    )
    driver.unlock(receipt)


def _everything_but_recency(driver: Driver) -> tuple[object, ...]:
    adapter = driver.adapter
    return device_ownership(driver.snapshot(), driver.config), dict(adapter.sizes()), tuple(adapter.events())
