"""MATCH: the longest cached prefix, where it ends, and that a match changes only recency and hits."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import partial
from random import Random

import pytest

from hicache.config import Layout, WritePolicy
from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import HybridModel
from hicache.types import Handle, Key, Namespace, Pool

from .checks import refused
from .residency_cases import (
    WINDOW_PAGES,
    build_residency,
    oracle_of,
    prompt_pages,
    random_residency,
    require_match,
    residency_cases,
)
from .scenario import (
    FULL,
    MAMBA,
    SWA,
    TOMBSTONE,
    best_match,
    evict_all,
    find,
    has,
    hit_pages,
    host_variant,
    key_of,
    longer_prompt,
    make_tombstone,
    open_standard,
    open_variant,
    open_with_window,
    put,
    put_on_host,
    recompute,
    unit,
    use,
    window_pages,
    window_tokens,
)
from .tree_view import Pages, device_ownership, device_slots, free_slots, lock_counts, nodes, prefixes, snapshot_values

# MATCH-1, MATCH-2, MATCH-6 to MATCH-9, MATCH-14: the longest prefix on the device, and what a match leaves unchanged.


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
        tokens[position] -= 1_000
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


# MATCH-3: a prefix is valid for sliding-window layers if the last window before its end is cached.


WINDOWS = {1: 4, 3: 5, 16: 24, 64: 48}
"""Windows by page size. Some end inside a page; the last is shorter than a page."""

GONE = 2
"""The number of first pages of a prompt without SWA data."""


@clause("MATCH-3", page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "part"])
@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_run_of_window_data_counts_from_one_window_on(driver: Driver, window: int, whole: bool) -> None:
    page = driver.config.page_size
    wide = open_variant(driver, sliding_window_size=window * page - (0 if whole else page // 2))
    prompt = list(range(1, GONE + window + 3))
    put(wide, prompt, passed=GONE)
    for count in range(len(prompt), 0, -1):
        is_valid = count >= GONE + window and (count == len(prompt) or not has(wide, MAMBA))
        expected = count if is_valid else 0
        found = hit_pages(wide, prompt[:count])
        assert found == expected, f"MATCH-3: {count} pages, the first {GONE} tombstones: {expected}, found {found}"


@clause("MATCH-3", bigram=True)
def test_a_run_shorter_than_the_window_counts_when_it_reaches_the_root(driver: Driver) -> None:
    wide = open_variant(driver, sliding_window_size=3 * driver.config.page_size)
    for count in (1, 2, 3, 4):
        put(wide, [1, 2, 3, 4][:count])
        found = hit_pages(wide, [1, 2, 3, 4][:count])
        assert found == count, f"MATCH-3: all {count} pages have window data, {found} were found"


@clause("MATCH-3", page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize(("tail", "expected"), [(1, 2), (2, 2), (3, 7), (4, 8)])
def test_a_tombstone_resets_the_run_to_zero(driver: Driver, tail: int, expected: int) -> None:
    # Two pages with data, two without, and a tail with data: the first two do not count for the tail's window of three.
    wide = open_variant(driver, sliding_window_size=3 * driver.config.page_size)
    put(wide, [1, 2])
    prompt = [1, 2, *range(3, 5 + tail)]
    put(wide, prompt, passed=4)
    found = hit_pages(wide, prompt)
    assert found == expected, f"MATCH-3: a tail of {tail} pages after a tombstone: {expected} expected, found {found}"


@clause("MATCH-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_evicted_window_data_ends_a_match_until_it_is_recomputed(driver: Driver) -> None:
    make_tombstone(driver, SWA)
    longer = longer_prompt(driver)
    assert hit_pages(driver, TOMBSTONE) == 0, f"MATCH-3: {TOMBSTONE} lost its window"
    assert hit_pages(driver, longer) == len(longer), f"MATCH-3: {longer} ends with a whole window"
    recompute(driver)
    found = hit_pages(driver, TOMBSTONE)
    assert found == len(TOMBSTONE), f"MATCH-3: {TOMBSTONE} has its window again, {found} were found"


@clause("MATCH-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_window_data_without_the_full_data_before_it_is_not_matched(driver: Driver) -> None:
    prompt = list(range(1, GONE + window_pages(driver.config) + 1))
    put(driver, prompt, passed=GONE)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    found = hit_pages(driver, prompt)
    assert found == 0, f"MATCH-3: nothing is cached any more, {found} were found"


@clause("MATCH-3", "REQ-4", needs=[Capability.REQUESTS, Capability.PAGED, Capability.BIGRAM])
@pytest.mark.parametrize("differs", [False, True], ids=["again", "other end"])
@pytest.mark.parametrize("is_bigram", [False, True], ids=["tokens", "bigrams"])
@pytest.mark.parametrize("page", [1, 3, 16, 64])
def test_the_prompt_of_a_long_request_is_found_up_to_its_last_page(
    adapter_type: type[CacheAdapter], page: int, is_bigram: bool, differs: bool
) -> None:
    # A prompt of whole pages ends inside its last one, as a request computes its last token itself. A request that went
    # on beyond, and kept one window before its own end and no more, would leave such a prompt nothing.
    driver = open_standard(
        adapter_type,
        "full+swa/page16/lru",
        page_size=page,
        capacity_tokens={FULL: 24 * page, SWA: 16 * page},
        sliding_window_size=WINDOWS[page],
        bigram=is_bigram,
    )
    prompt = driver.prompt(range(1, window_pages(driver.config) + 5))
    first = driver.admit(driver.key(prompt))
    assert first is not None, "REQ-5: a request fits an empty cache"
    for token in range(driver.config.page_size - 1):
        driver.extend(first.request, [token])
    driver.finish(first.request)
    again = driver.admit(driver.key([*prompt[:-1], 9] if differs else prompt))
    assert again is not None, "REQ-5: a prompt that was served once fits again"
    expected = (window_pages(driver.config) + 3) * driver.config.page_size
    got = again.cached_tokens
    assert got == expected, f"{what_broke(driver, prompt, expected)}: expected {expected} cached, got {got}"
    driver.abort(again.request)


def what_broke(driver: Driver, prompt: list[int], expected: int) -> str:
    """The broken clause: REQ-4 if the request itself is not found either, MATCH-3 if only its prompt is not."""
    served = [*prompt, *range(driver.config.page_size - 1)]
    whole = driver.admit(driver.key([*served, 9]))
    return "MATCH-3" if whole is not None and whole.cached_tokens > expected else "REQ-4"


# MATCH-4, MATCH-11, MATCH-13: a recurrent state is valid at one exact length, and requests get copies of it.


@clause("MATCH-4")
def test_a_match_ends_at_the_deepest_state(driver: Driver) -> None:
    put(driver, [1, 2])
    put(driver, [1, 2, 3, 4])
    probes = {(1,): 0, (1, 2): 2, (1, 2, 9): 2, (1, 2, 3): 2, (1, 2, 3, 9): 2, (1, 2, 3, 4): 4, (1, 2, 3, 4, 5): 4}
    for prompt, expected in probes.items():
        found = hit_pages(driver, prompt)
        assert found == expected, f"MATCH-4: states after 2 and 4 pages: of {prompt} expected {expected}, found {found}"


@clause("MATCH-4", needs=[Capability.SNAPSHOT])
def test_no_match_ends_at_an_evicted_state_until_it_is_recomputed(driver: Driver) -> None:
    make_tombstone(driver, MAMBA)
    longer = longer_prompt(driver)
    for prompt, expected in {TOMBSTONE: 0, (*TOMBSTONE, 99): 0, tuple(longer): len(longer)}.items():
        found = hit_pages(driver, prompt)
        assert found == expected, f"MATCH-4: {TOMBSTONE} lost its state: of {prompt} {expected} expected, found {found}"
    recompute(driver)
    found = hit_pages(driver, TOMBSTONE)
    assert found == len(TOMBSTONE), f"MATCH-4: {TOMBSTONE} has a state again, {found} were found"


@clause("MATCH-11", needs=[Capability.SNAPSHOT])
def test_writing_to_a_forked_state_leaves_the_trees_state_unchanged(driver: Driver) -> None:
    key = key_of(driver, [1, 2])
    put(driver, [1, 2])
    found = driver.match(key)
    (in_tree,) = device_slots(driver, MAMBA)[1, 2]
    forks = [_forked(driver, found.device_anchor) for _ in range(2)]
    assert len({in_tree, *forks}) == 3, f"MATCH-11: the tree has state {in_tree}, the callers were given {forks}"
    for number, fork in enumerate(forks):
        driver.contents.verify_state(key, fork)
        driver.write_state(key_of(driver, [7, number]), fork)
    driver.check()
    driver.verify_state(key, driver.match(key))
    assert device_slots(driver, MAMBA)[1, 2] == (in_tree,), "MATCH-11: the tree has another state than before"


@clause("MATCH-11", needs=[Capability.REQUESTS])
def test_requests_that_continue_from_one_state_do_not_change_it(driver: Driver) -> None:
    put(driver, [1, 2])
    running = [_admitted(driver, [*driver.prompt([1, 2]), token]) for token in (7, 8)]
    assert running[0].state != running[1].state, f"MATCH-11: two requests share state {running[0].state}"
    for admission in running:
        driver.extend(admission.request, [9])
    driver.verify_state(key_of(driver, [1, 2]), driver.match(key_of(driver, [1, 2])))
    for admission in running:
        driver.finish(admission.request)


@clause("MATCH-11", needs=[Capability.SNAPSHOT])
def test_a_fork_does_not_evict_its_source(driver: Driver) -> None:
    put(driver, [1, 2])
    oldest = find(driver, [1, 2])
    for page in range(11, 10 + driver.config.capacity_tokens[MAMBA]):
        put(driver, [page])
    driver.contents.verify_state(key_of(driver, [1, 2]), _forked(driver, oldest))
    assert (1, 2) in device_slots(driver, MAMBA), "MATCH-11: the state that was copied is still there"


@clause("MATCH-11", needs=[Capability.SNAPSHOT])
def test_a_fork_without_a_free_slot_is_none(driver: Driver) -> None:
    put(driver, [1, 2])
    anchor = find(driver, [1, 2])
    states = [driver.allocate_state() for _ in range(driver.config.capacity_tokens[MAMBA] - 1)]
    before = device_ownership(driver.snapshot(), driver.config)
    assert driver.fork_state(anchor) is None, f"MATCH-11: states {states} are held, the last one is to be copied"
    assert device_ownership(driver.snapshot(), driver.config) == before, (
        "MATCH-11: a copy that was not given took something"
    )


@clause("MATCH-11")
@pytest.mark.parametrize("layout", list(Layout))
def test_a_fork_has_all_layers_and_buffers(driver: Driver, layout: Layout) -> None:
    other = open_variant(driver, layout=layout)
    put(other, [1])
    fork = _forked(other, find(other, [1]))
    other.contents.verify_state(key_of(other, [1]), fork)
    assert other.adapter.layers(Pool.MAMBA) == HybridModel.of(other.config.model).mamba_layers, (
        "MATCH-11: every layer was compared"
    )


@clause("MATCH-13", page_sizes=[1, 16])
@pytest.mark.parametrize(("chunk_pages", "expected_pages"), [(1, 5), (2, 4), (3, 3), (4, 4), (6, None)])
def test_branching_seqlen_is_the_last_chunk_boundary_of_the_shared_prefix(
    driver: Driver, chunk_pages: int, expected_pages: int | None
) -> None:
    page = driver.config.page_size
    chunked = open_variant(driver, mamba_chunk_size=chunk_pages * page)
    put(chunked, [1, 2, 3, 4, 5, 6])
    found = chunked.match(key_of(chunked, [1, 2, 3, 4, 5, 9]))
    assert len(found.device_indices) == 0, "MATCH-4: there is no state after five pages"
    expected = None if expected_pages is None else expected_pages * page
    assert found.branching_seqlen == expected, f"MATCH-13: expected {expected}, got {found.branching_seqlen}"


@clause("MATCH-13")
def test_a_chunk_need_not_be_whole_pages(driver: Driver) -> None:
    chunked = open_variant(driver, mamba_chunk_size=2 * driver.config.page_size + 1)
    put(chunked, [1, 2, 3, 4, 5, 6])
    found = chunked.match(key_of(chunked, [1, 2, 3, 4, 5, 9]))
    expected = 5 * driver.config.page_size // (2 * driver.config.page_size + 1) * (2 * driver.config.page_size + 1)
    assert found.branching_seqlen == expected, f"MATCH-13: expected {expected}, got {found.branching_seqlen}"


@clause("MATCH-13")
def test_branching_seqlen_is_none_where_a_state_would_not_extend_the_match(driver: Driver) -> None:
    chunked = open_variant(driver, mamba_chunk_size=2 * driver.config.page_size)
    put(chunked, [1, 2, 3, 4])
    put(chunked, [1, 2, 3, 4, 5, 6])
    for prompt in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 9], [1, 2, 3, 4], [1, 9], [8, 9], []):
        found = chunked.match(key_of(chunked, prompt))
        assert found.branching_seqlen is None, f"MATCH-13: {prompt}: expected None, got {found.branching_seqlen}"


def _forked(driver: Driver, handle: Handle) -> int:
    fork = driver.fork_state(handle)
    assert fork is not None, "MATCH-11: there is room for a copy"
    return fork


def _admitted(driver: Driver, tokens: list[int]) -> Admission:
    admission = driver.admit(driver.key(tokens))
    assert admission is not None, "REQ-5: a short request fits"
    expected = 2 * driver.config.page_size
    assert admission.cached_tokens == expected, f"MATCH-4: expected {expected} cached, got {admission.cached_tokens}"
    return admission


# MATCH-10, MATCH-16: a use makes the nodes on its path the most recent; observed through the next evictions.


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_matched_leaf_is_evicted_last(driver: Driver) -> None:
    for page in (1, 2, 3):
        put(driver, [page])
    use(driver, [1])
    for left in ({(1,), (3,)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-16", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_match_without_a_lock_is_a_use(driver: Driver) -> None:
    for page in (1, 2, 3):
        put(driver, [page])
    find(driver, [1])
    for left in ({(1,), (3,)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left, "MATCH-16")


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_nodes_below_the_match_are_not_refreshed(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    put(driver, [3])
    use(driver, [1])
    for left in ({(1,), (3,)}, {(1,)}):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_matched_chain_is_evicted_from_its_end(driver: Driver) -> None:
    put(driver, [1])
    put(driver, [1, 2])
    put(driver, [3])
    use(driver, [1, 2])
    for left in ({(1,), (1, 2)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-10", components=[MAMBA], needs=[Capability.SNAPSHOT])
def test_the_matched_state_nearest_to_the_root_is_the_oldest(driver: Driver) -> None:
    for pages in ([1], [1, 2], [1, 2, 3], [9]):
        put(driver, pages)
    use(driver, [1, 2, 3])
    for left in (prefixes(1, 2, 3), {(1, 2), (1, 2, 3)}, {(1, 2, 3)}):
        _evict_one(driver, MAMBA)
        _require_left(driver, MAMBA, left)


@clause("MATCH-10", components=[MAMBA], needs=[Capability.SNAPSHOT])
def test_a_match_refreshes_no_state_below_it(driver: Driver) -> None:
    for pages in ([1], [1, 2], [9]):
        put(driver, pages)
    use(driver, [1])
    for left in ({(1,), (9,)}, {(1,)}):
        _evict_one(driver, MAMBA)
        _require_left(driver, MAMBA, left)


@clause("MATCH-10", components=[SWA], needs=[Capability.SNAPSHOT], bigram=True)
def test_the_matched_window_data_nearest_to_the_root_is_the_oldest(driver: Driver) -> None:
    wide = open_with_window(driver, 3)
    for pages in ([1], [1, 2], [1, 2, 3], [9]):
        put(wide, pages)
    use(wide, [1, 2, 3])
    for left in (prefixes(1, 2, 3), {(1, 2), (1, 2, 3)}, {(1, 2, 3)}):
        _evict_one(wide, SWA)
        _require_left(wide, SWA, left)


@clause("MATCH-10", components=[SWA], needs=[Capability.SNAPSHOT], bigram=True)
def test_data_before_the_window_is_not_refreshed(driver: Driver) -> None:
    longer = list(range(1, 2 + window_pages(driver.config)))
    put(driver, [1])
    put(driver, longer)
    put(driver, [99])
    use(driver, longer)
    in_window = prefixes(*longer) - {(1,)}
    for left in ({*in_window, (99,)}, in_window):
        _evict_one(driver, SWA)
        _require_left(driver, SWA, left)


def _evict_one(driver: Driver, component: str) -> None:
    driver.evict(component, unit(driver, component))


def _require_left(driver: Driver, component: str, expected: AbstractSet[Pages], rule: str = "MATCH-10") -> None:
    left = set(device_slots(driver, component))
    assert left == expected, f"{rule}: {component}: expected {sorted(expected)} to be left, got {sorted(left)}"


# MATCH-15: a match ends at a node that all components accept.


WINDOW = 3
"""Pages of the window in these tests."""


@clause("MATCH-15", page_sizes=[1, 16])
@pytest.mark.parametrize("cut", [3, 4, 5])
def test_the_window_run_counts_across_a_node_without_a_state(driver: Driver, cut: int) -> None:
    # Two tombstones, then four pages with SWA data and one state, at their end. A split leaves a node without a state
    # in between: MAMBA refuses it, and its pages count for the window all the same.
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2, 3, 4, 5, 6], passed=2)
    assert hit_pages(wide, [*range(1, cut + 1), 9]) == 0, f"MATCH-4: there is no state after {cut} pages"
    found = hit_pages(wide, [1, 2, 3, 4, 5, 6])
    assert found == 6, f"MATCH-15: four pages end with a state, {WINDOW} are the window: 6 expected, found {found}"


@clause("MATCH-15")
def test_a_tombstone_without_a_state_resets_the_window_run(driver: Driver) -> None:
    # Two pages, two tombstones without a state, two pages: each component must see the middle to know that the last two
    # pages are all that the window has.
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2])
    result = put(wide, [1, 2, 3, 4, 5, 6], passed=4)
    found = hit_pages(wide, [1, 2, 3, 4, 5, 6])
    assert found == 2, f"MATCH-15: a run of 2 pages is shorter than {WINDOW}: 2 pages expected, found {found}"
    expected = 2 * driver.config.page_size
    assert result.accepted_length == expected, f"MATCH-15: the insert accepted {result.accepted_length}, not {expected}"


@clause("MATCH-15")
@pytest.mark.parametrize(("passed", "expected"), [(2, 5), (3, 0)])
def test_a_state_is_valid_only_with_its_window(driver: Driver, passed: int, expected: int) -> None:
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2, 3, 4, 5], passed=passed)
    found = hit_pages(wide, [1, 2, 3, 4, 5])
    assert found == expected, f"MATCH-15: {5 - passed} pages for a window of {WINDOW}: {expected} expected, got {found}"


@clause("MATCH-15")
def test_a_match_finds_the_deepest_node_that_all_components_accept(driver: Driver) -> None:
    # After 2 pages all agree; after 4 only the window is there; after 5, without a state as well; after 7 all agree.
    wide = open_with_window(driver, 1)
    put(wide, [1, 2])
    put(wide, [1, 2, 3, 4, 5, 6, 7])
    for cut, expected in {4: 2, 5: 2, 7: 7, 2: 2, 1: 0}.items():
        found = hit_pages(wide, [*range(1, cut + 1), 9])
        assert found == expected, f"MATCH-15: {cut} pages and another: {expected} expected, found {found}"


@clause("MATCH-15", "MATCH-13")
@pytest.mark.parametrize(("shared", "expected"), [(4, None), (5, 5)])
def test_a_state_is_requested_only_where_the_window_is_cached(
    driver: Driver, shared: int, expected: int | None
) -> None:
    wide = open_with_window(driver, WINDOW)
    put(wide, [1, 2, 3, 4, 5, 6], passed=2)
    found = wide.match(key_of(wide, [*range(1, shared + 1), 9])).branching_seqlen
    page, chunk = driver.config.page_size, driver.config.mamba_chunk_size or 1
    wanted = None if expected is None else expected * page // chunk * chunk
    assert found == wanted, f"MATCH-15: {shared} pages shared, two of them tombstones: expected {wanted}, got {found}"


# MATCH-2, MATCH-5, MATCH-12: the best match on both tiers, the device anchor, and the host hits between them.


LOOKING = (Capability.HOST, Capability.SNAPSHOT)
WRITE_THROUGH = (WritePolicy.WRITE_THROUGH,)
RANDOM_RESIDENCIES = 5
"""How many random residencies a test draws."""


@clause("MATCH-1", "MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_match_finds_the_anchor_and_the_host_hits_of_the_residency_cases(driver: Driver) -> None:
    with host_variant(driver, sliding_window_size=window_tokens(driver.config, WINDOW_PAGES)) as two_tiers:
        for case in residency_cases(two_tiers):
            build_residency(two_tiers, case.residency)
            require_match(two_tiers.match(key_of(two_tiers, case.pages)), case.expected(two_tiers), case)
            two_tiers.reset()


@clause("MATCH-1", "MATCH-2", needs=(*LOOKING, Capability.REQUESTS), write_policies=WRITE_THROUGH)
def test_a_look_up_finds_the_best_match_of_the_residency_cases(driver: Driver) -> None:
    with host_variant(driver, sliding_window_size=window_tokens(driver.config, WINDOW_PAGES)) as two_tiers:
        for case in residency_cases(two_tiers):
            build_residency(two_tiers, case.residency)
            found, expected = two_tiers.lookup(key_of(two_tiers, case.pages)), case.expected(two_tiers).best
            assert found == expected, f"MATCH-1: {case}: expected {expected} elements cached on both tiers, got {found}"
            two_tiers.reset()


@clause("MATCH-1", "MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
@pytest.mark.parametrize("seed", range(3))
def test_every_prefix_finds_what_the_oracle_finds(driver: Driver, seed: int) -> None:
    rng = Random(seed)
    for _ in range(RANDOM_RESIDENCIES):
        residency = random_residency(rng, driver.config.components)
        with host_variant(driver, sliding_window_size=window_tokens(driver.config, rng.randint(1, 3))) as two_tiers:
            build_residency(two_tiers, residency)
            two_tiers.check_every = 0
            pages = prompt_pages(residency)
            oracle = oracle_of(two_tiers, pages)
            # The longest first: a match that ends inside a node splits it.
            for count in range(len(pages), 0, -1):
                key = key_of(two_tiers, pages[:count])
                require_match(two_tiers.match(key, chunked=True), oracle.expected_match(key), (residency, count))


@clause("MATCH-5", "MATCH-9", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_match_moves_nothing_between_the_tiers(driver: Driver) -> None:
    for case in residency_cases(driver):
        build_residency(driver, case.residency)
        key = key_of(driver, prompt_pages(case.residency))
        before = snapshot_values(driver.snapshot())
        driver.match(key, chunked=True)
        assert snapshot_values(driver.snapshot()) == before, f"MATCH-9: a match of {case.residency} changed {before}"
        driver.reset()


@clause("MATCH-7", needs=LOOKING)
def test_a_node_that_left_both_tiers_is_not_found(driver: Driver) -> None:
    put_on_host(driver, [1, 2], [1, 2, 3, 4])
    handle = best_match(driver, [1, 2, 3, 4])
    for expected in (2, 0):
        driver.evict_host(FULL, 1)
        found = driver.match(key_of(driver, [1, 2, 3, 4]))
        hits = len(found.device_indices), found.host_hit_length // driver.config.page_size
        assert hits == (0, expected), f"MATCH-7: expected {expected} pages on the host alone, found {hits}"
    lower = found.component_host_hit_lengths
    assert not any(lower.values()), f"MATCH-7: nothing is on any tier, found {lower}"
    load_back = partial(driver.adapter.load_back, quota=None)
    for verb in (driver.adapter.lock, driver.adapter.lock_host, load_back):
        if Capability.REFUSALS in driver.adapter.capabilities:
            with refused(driver, "MATCH-7", f"{verb} of a dead node"):
                verb(handle)


@clause("MATCH-13", needs=LOOKING)
def test_with_a_host_tier_branching_seqlen_is_none(driver: Driver) -> None:
    page = driver.config.page_size
    with host_variant(driver, mamba_chunk_size=page) as chunked:
        put(chunked, [1, 2, 3, 4, 5, 6])
        for prompt in ([1, 2, 3, 4, 5, 9], [1, 2, 3, 4, 5, 6], [1, 2, 9], [7]):
            found = chunked.match(key_of(chunked, prompt))
            assert found.branching_seqlen is None, f"MATCH-13: {prompt}: expected None, got {found.branching_seqlen}"
