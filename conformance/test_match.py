"""MATCH: the longest cached prefix, where it ends, and that a match changes only recency and hits."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from random import Random

import pytest

from hicache.config import Layout, Recency, WritePolicy
from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import HybridModel
from hicache.testing.models.tree import Model
from hicache.types import Handle, Key, Namespace, Pool

from .residency_cases import (
    WINDOW_PAGES,
    Residency,
    build_residency,
    oracle_of,
    prompt_pages,
    random_residency,
    require_match,
    residency_cases,
)
from .scenario import FULL, MAMBA, SWA, TOMBSTONE, Scenario, open_standard
from .snapshot_values import Pages, device_ownership, free_slots, lock_counts, prefixes, snapshot_values

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
def test_the_longest_prefix_is_found_at_whose_end_all_components_are_valid(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    driver.put_pages([1, 2, 4, 5])
    for prompt, (without_states, with_states) in PROBES.items():
        expected = with_states if driver.has(MAMBA) else without_states
        found = driver.hit_pages(prompt)
        assert found == expected, f"MATCH-1: of pages {prompt} expected {expected}, found {found}"


@clause("MATCH-1", needs=[Capability.PAGED])
def test_a_page_that_differs_in_one_token_is_not_found(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2])
    page = driver.config.page_size
    for position in (page, 2 * page - 1):
        tokens = driver.prompt([1, 2])
        tokens[position] -= 1_000
        found = len(driver.match(driver.key(tokens)).device_indices)
        assert found == page, f"MATCH-1: token {position} differs: expected {page}, found {found}"


@clause("MATCH-1", bigram=True)
def test_prompts_that_share_a_prefix_find_the_same_slots(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([1, 2, 3])
    shorter, longer = (driver.match(driver.key_of(pages)).device_indices for pages in ([1, 2], [1, 2, 3]))
    count = 2 * driver.config.page_size
    assert len(shorter) == count, f"MATCH-1: {count} expected, found {len(shorter)}"
    assert longer[:count].tolist() == shorter.tolist(), f"MATCH-1: {longer.tolist()} begins unlike {shorter.tolist()}"


@clause("MATCH-1", needs=[Capability.REQUESTS], bigram=True)
def test_a_request_does_not_take_the_slots_of_its_own_prefix(driver: Scenario) -> None:
    # The prefix is the least recently used node of a full cache: other nodes must be evicted for the rest.
    room = driver.config.capacity_tokens[SWA if driver.has(SWA) else FULL] // driver.config.page_size
    driver.put_pages([1, 2])
    driver.put_pages(list(range(10, 10 + room - 2)))
    admission = driver.admit(driver.key([*driver.prompt([1, 2, 3, 4]), 7]))
    assert admission is not None, "MATCH-1: five pages fit when the other prompt goes"
    expected = 2 * driver.config.page_size
    assert admission.cached_tokens == expected, f"MATCH-1: expected {expected} cached, got {admission.cached_tokens}"
    driver.finish(admission.request)


@clause("MATCH-2", bigram=True)
def test_full_is_valid_where_it_has_device_data(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([1, 2, 3])
    before = driver.hit_pages([1, 2, 3])
    driver.evict(FULL, driver.config.page_size)
    after = driver.hit_pages([1, 2, 3])
    assert (before, after) == (3, 2), f"MATCH-2: the third page had data and lost it, found {before} and then {after}"


@clause("MATCH-6", needs=[Capability.SNAPSHOT], bigram=True)
def test_best_match_and_device_anchor_are_one_node(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([1, 2, 3])
    found = driver.match(driver.key_of([1, 2, 9]))
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
def test_a_match_ends_before_an_evicted_node(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([1, 2, 3])
    driver.evict(FULL, driver.config.page_size)
    assert driver.hit_pages([1, 2, 3, 4]) == 2, "MATCH-7: the third page is gone, the first two are not"
    driver.evict_all()
    assert driver.hit_pages([1, 2, 3]) == 0, "MATCH-7: all is gone"
    driver.put_pages([1, 2, 3])
    assert driver.hit_pages([1, 2, 3]) == 3, "MATCH-7: what was evicted can be cached again"


@clause("MATCH-8", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_match_that_ends_inside_a_node_splits_it(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3, 4, 5, 6])
    for boundary in ((1, 2, 3), (1,), (1, 2, 3, 4, 5)):
        driver.hit_pages([*boundary, 9])
        ends = set(driver.nodes())
        assert {boundary, (1, 2, 3, 4, 5, 6)} <= ends, f"MATCH-8: {boundary} is the end of a node, ends are {ends}"


@clause("MATCH-8", needs=[Capability.PAGED, Capability.SNAPSHOT], bigram=True)
def test_a_match_that_ends_inside_a_page_ends_before_it(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3])
    tokens = driver.prompt([1, 2, 3])
    tokens[-1] += 1_000
    driver.match(driver.key(tokens))
    ends = {node.end for node in driver.snapshot().nodes}
    assert 2 * driver.config.page_size in ends, f"MATCH-8: two pages are whole, nodes end at {ends}"


@clause("MATCH-8", needs=[Capability.SNAPSHOT, Capability.SIZES], bigram=True)
def test_a_lock_on_a_match_inside_a_node_holds_only_what_was_found(driver: Scenario) -> None:
    pool = free_slots(driver.snapshot())
    driver.put_pages([1, 2, 3, 4])
    found = driver.match(driver.key_of([1, 2, 9]))
    receipt = driver.lock(found.device_anchor)
    protected = driver.adapter.sizes()[FULL].protected
    assert protected == len(found.device_indices), f"MATCH-8: {len(found.device_indices)} found, {protected} protected"
    driver.put_pages([1, 2, 9])
    driver.unlock(receipt)
    left = {component: sizes.protected for component, sizes in driver.adapter.sizes().items()}
    assert not any(left.values()), f"MATCH-8: nothing is locked any more, protected are {left}"
    driver.evict_all()
    assert free_slots(driver.snapshot()) == pool, "MATCH-8: a lock was left behind in the tree"


@clause("MATCH-9", needs=[Capability.SIZES, Capability.EVENTS], bigram=True)
def test_matching_moves_no_data_and_takes_no_lock(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3, 4])
    driver.put_pages([1, 2, 5])
    receipt = driver.lock(driver.match(driver.key_of([1, 2, 5])).device_anchor)
    before = _everything_but_recency(driver)
    for pages in ([1, 2, 5], [1, 2, 3, 9], [1], [1, 2, 3, 4, 5], [9], []):
        for chunked in (False, True):
            driver.match(driver.key_of(pages), chunked=chunked)
        after = _everything_but_recency(driver)
        assert after == before, f"MATCH-9: a match of pages {pages} changed {before} to {after}"
    driver.unlock(receipt)


@clause("MATCH-14", needs=[Capability.SNAPSHOT], bigram=True)
def test_an_empty_or_unknown_key_gives_the_root(driver: Scenario) -> None:
    unknown = Namespace(lora="unknown", salt=None, tenant=None)
    keys = {"empty": driver.key_of([]), "no token": driver.key([]), "unknown": driver.key_of([9, 1])}
    if Capability.NAMESPACES in driver.adapter.capabilities:
        keys["unknown namespace"] = driver.key(driver.prompt([1, 2]), unknown)
    for prompt in ([], [1, 2]):
        driver.put_pages(prompt)
        for name, key in keys.items():
            _require_root(driver, key, name)


def _require_root(driver: Scenario, key: Key, name: str) -> None:
    before = device_ownership(driver.snapshot(), driver.config)
    found = driver.match(key)
    assert len(found.device_indices) == 0, f"MATCH-14: {name} key: {found.device_indices.tolist()} found"
    receipt = driver.lock(found.device_anchor)
    assert device_ownership(driver.snapshot(), driver.config) == before, (
        f"MATCH-14: {name} key: its node is not the root"
    )
    driver.unlock(receipt)


def _everything_but_recency(driver: Scenario) -> tuple[object, ...]:
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
def test_a_run_of_window_data_counts_from_one_window_on(driver: Scenario, window: int, whole: bool) -> None:
    page = driver.config.page_size
    wide = driver.open_variant(sliding_window_size=window * page - (0 if whole else page // 2))
    prompt = list(range(1, GONE + window + 3))
    wide.put_pages(prompt, passed=GONE)
    for count in range(len(prompt), 0, -1):
        is_valid = count >= GONE + window and (count == len(prompt) or not wide.has(MAMBA))
        expected = count if is_valid else 0
        found = wide.hit_pages(prompt[:count])
        assert found == expected, f"MATCH-3: {count} pages, the first {GONE} tombstones: {expected}, found {found}"


@clause("MATCH-3", bigram=True)
def test_a_run_shorter_than_the_window_counts_when_it_reaches_the_root(driver: Scenario) -> None:
    wide = driver.open_variant(sliding_window_size=3 * driver.config.page_size)
    for count in (1, 2, 3, 4):
        wide.put_pages([1, 2, 3, 4][:count])
        found = wide.hit_pages([1, 2, 3, 4][:count])
        assert found == count, f"MATCH-3: all {count} pages have window data, {found} were found"


@clause("MATCH-3", page_sizes=[1, 16], bigram=True)
@pytest.mark.parametrize(("tail", "expected"), [(1, 2), (2, 2), (3, 7), (4, 8)])
def test_a_tombstone_resets_the_run_to_zero(driver: Scenario, tail: int, expected: int) -> None:
    # Two pages with data, two without, and a tail with data: the first two do not count for the tail's window of three.
    wide = driver.open_variant(sliding_window_size=3 * driver.config.page_size)
    wide.put_pages([1, 2])
    prompt = [1, 2, *range(3, 5 + tail)]
    wide.put_pages(prompt, passed=4)
    found = wide.hit_pages(prompt)
    assert found == expected, f"MATCH-3: a tail of {tail} pages after a tombstone: {expected} expected, found {found}"


@clause("MATCH-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_evicted_window_data_ends_a_match_until_it_is_recomputed(driver: Scenario) -> None:
    driver.make_tombstone(SWA)
    longer = driver.longer_prompt()
    assert driver.hit_pages(TOMBSTONE) == 0, f"MATCH-3: {TOMBSTONE} lost its window"
    assert driver.hit_pages(longer) == len(longer), f"MATCH-3: {longer} ends with a whole window"
    driver.recompute()
    found = driver.hit_pages(TOMBSTONE)
    assert found == len(TOMBSTONE), f"MATCH-3: {TOMBSTONE} has its window again, {found} were found"


@clause("MATCH-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_window_data_without_the_full_data_before_it_is_not_matched(driver: Scenario) -> None:
    prompt = list(range(1, GONE + driver.window_pages + 1))
    driver.put_pages(prompt, passed=GONE)
    driver.evict(FULL, driver.config.capacity_tokens[FULL])
    found = driver.hit_pages(prompt)
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
    prompt = driver.prompt(range(1, driver.window_pages + 5))
    first = driver.admit(driver.key(prompt))
    assert first is not None, "REQ-5: a request fits an empty cache"
    for token in range(driver.config.page_size - 1):
        driver.extend(first.request, [token])
    driver.finish(first.request)
    again = driver.admit(driver.key([*prompt[:-1], 9] if differs else prompt))
    assert again is not None, "REQ-5: a prompt that was served once fits again"
    expected = (driver.window_pages + 3) * driver.config.page_size
    got = again.cached_tokens
    assert got == expected, f"{what_broke(driver, prompt, expected)}: expected {expected} cached, got {got}"
    driver.abort(again.request)


def what_broke(driver: Scenario, prompt: list[int], expected: int) -> str:
    """The broken clause: REQ-4 if the request itself is not found either, MATCH-3 if only its prompt is not."""
    served = [*prompt, *range(driver.config.page_size - 1)]
    whole = driver.admit(driver.key([*served, 9]))
    return "MATCH-3" if whole is not None and whole.cached_tokens > expected else "REQ-4"


# MATCH-4, MATCH-11, MATCH-13: a recurrent state is valid at one exact length, and requests get copies of it.


@clause("MATCH-4")
def test_a_match_ends_at_the_deepest_state(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    driver.put_pages([1, 2, 3, 4])
    probes = {(1,): 0, (1, 2): 2, (1, 2, 9): 2, (1, 2, 3): 2, (1, 2, 3, 9): 2, (1, 2, 3, 4): 4, (1, 2, 3, 4, 5): 4}
    for prompt, expected in probes.items():
        found = driver.hit_pages(prompt)
        assert found == expected, f"MATCH-4: states after 2 and 4 pages: of {prompt} expected {expected}, found {found}"


@clause("MATCH-4", needs=[Capability.SNAPSHOT])
def test_no_match_ends_at_an_evicted_state_until_it_is_recomputed(driver: Scenario) -> None:
    driver.make_tombstone(MAMBA)
    longer = driver.longer_prompt()
    for prompt, expected in {TOMBSTONE: 0, (*TOMBSTONE, 99): 0, tuple(longer): len(longer)}.items():
        found = driver.hit_pages(prompt)
        assert found == expected, f"MATCH-4: {TOMBSTONE} lost its state: of {prompt} {expected} expected, found {found}"
    driver.recompute()
    found = driver.hit_pages(TOMBSTONE)
    assert found == len(TOMBSTONE), f"MATCH-4: {TOMBSTONE} has a state again, {found} were found"


@clause("MATCH-11", needs=[Capability.SNAPSHOT])
def test_writing_to_a_forked_state_leaves_the_trees_state_unchanged(driver: Scenario) -> None:
    key = driver.key_of([1, 2])
    driver.put_pages([1, 2])
    found = driver.match(key)
    (in_tree,) = driver.device_slots(MAMBA)[1, 2]
    forks = [_forked(driver, found.device_anchor) for _ in range(2)]
    assert len({in_tree, *forks}) == 3, f"MATCH-11: the tree has state {in_tree}, the callers were given {forks}"
    for number, fork in enumerate(forks):
        driver.contents.verify_state(key, fork)
        driver.write_state(driver.key_of([7, number]), fork)
    driver.check()
    driver.verify_state(key, driver.match(key))
    assert driver.device_slots(MAMBA)[1, 2] == (in_tree,), "MATCH-11: the tree has another state than before"


@clause("MATCH-11", needs=[Capability.REQUESTS])
def test_requests_that_continue_from_one_state_do_not_change_it(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    running = [_admitted(driver, [*driver.prompt([1, 2]), token]) for token in (7, 8)]
    assert running[0].state != running[1].state, f"MATCH-11: two requests share state {running[0].state}"
    for admission in running:
        driver.extend(admission.request, [9])
    driver.verify_state(driver.key_of([1, 2]), driver.match(driver.key_of([1, 2])))
    for admission in running:
        driver.finish(admission.request)


@clause("MATCH-11", needs=[Capability.SNAPSHOT])
def test_a_fork_does_not_evict_its_source(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    oldest = driver.find([1, 2])
    for page in range(11, 10 + driver.config.capacity_tokens[MAMBA]):
        driver.put_pages([page])
    driver.contents.verify_state(driver.key_of([1, 2]), _forked(driver, oldest))
    assert (1, 2) in driver.device_slots(MAMBA), "MATCH-11: the state that was copied is still there"


@clause("MATCH-11", needs=[Capability.SNAPSHOT])
def test_a_fork_without_a_free_slot_is_none(driver: Scenario) -> None:
    driver.put_pages([1, 2])
    anchor = driver.find([1, 2])
    states = [driver.allocate_state() for _ in range(driver.config.capacity_tokens[MAMBA] - 1)]
    before = device_ownership(driver.snapshot(), driver.config)
    assert driver.fork_state(anchor) is None, f"MATCH-11: states {states} are held, the last one is to be copied"
    assert device_ownership(driver.snapshot(), driver.config) == before, (
        "MATCH-11: a copy that was not given took something"
    )


@clause("MATCH-11")
@pytest.mark.parametrize("layout", list(Layout))
def test_a_fork_has_all_layers_and_buffers(driver: Scenario, layout: Layout) -> None:
    other = driver.open_variant(layout=layout)
    other.put_pages([1])
    fork = _forked(other, other.find([1]))
    other.contents.verify_state(other.key_of([1]), fork)
    assert other.adapter.layers(Pool.MAMBA) == HybridModel.of(other.config.model).mamba_layers, (
        "MATCH-11: every layer was compared"
    )


@clause("MATCH-13", page_sizes=[1, 16])
@pytest.mark.parametrize(("chunk_pages", "expected_pages"), [(1, 5), (2, 4), (3, 3), (4, 4), (6, None)])
def test_branching_seqlen_is_the_last_chunk_boundary_of_the_shared_prefix(
    driver: Scenario, chunk_pages: int, expected_pages: int | None
) -> None:
    page = driver.config.page_size
    chunked = driver.open_variant(mamba_chunk_size=chunk_pages * page)
    chunked.put_pages([1, 2, 3, 4, 5, 6])
    found = chunked.match(chunked.key_of([1, 2, 3, 4, 5, 9]))
    assert len(found.device_indices) == 0, "MATCH-4: there is no state after five pages"
    expected = None if expected_pages is None else expected_pages * page
    assert found.branching_seqlen == expected, f"MATCH-13: expected {expected}, got {found.branching_seqlen}"


@clause("MATCH-13")
def test_a_chunk_need_not_be_whole_pages(driver: Scenario) -> None:
    chunked = driver.open_variant(mamba_chunk_size=2 * driver.config.page_size + 1)
    chunked.put_pages([1, 2, 3, 4, 5, 6])
    found = chunked.match(chunked.key_of([1, 2, 3, 4, 5, 9]))
    expected = 5 * driver.config.page_size // (2 * driver.config.page_size + 1) * (2 * driver.config.page_size + 1)
    assert found.branching_seqlen == expected, f"MATCH-13: expected {expected}, got {found.branching_seqlen}"


@clause("MATCH-13")
def test_branching_seqlen_is_none_where_a_state_would_not_extend_the_match(driver: Scenario) -> None:
    chunked = driver.open_variant(mamba_chunk_size=2 * driver.config.page_size)
    chunked.put_pages([1, 2, 3, 4])
    chunked.put_pages([1, 2, 3, 4, 5, 6])
    for prompt in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 9], [1, 2, 3, 4], [1, 9], [8, 9], []):
        found = chunked.match(chunked.key_of(prompt))
        assert found.branching_seqlen is None, f"MATCH-13: {prompt}: expected None, got {found.branching_seqlen}"


def _forked(driver: Scenario, handle: Handle) -> int:
    fork = driver.fork_state(handle)
    assert fork is not None, "MATCH-11: there is room for a copy"
    return fork


def _admitted(driver: Scenario, tokens: list[int]) -> Admission:
    admission = driver.admit(driver.key(tokens))
    assert admission is not None, "REQ-5: a short request fits"
    expected = 2 * driver.config.page_size
    assert admission.cached_tokens == expected, f"MATCH-4: expected {expected} cached, got {admission.cached_tokens}"
    return admission


# MATCH-10, MATCH-16: a use makes the nodes on its path the most recent; observed through the next evictions.


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_matched_leaf_is_evicted_last(driver: Scenario) -> None:
    for page in (1, 2, 3):
        driver.put_pages([page])
    driver.use([1])
    for left in ({(1,), (3,)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-16", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_match_without_a_lock_is_a_use(driver: Scenario) -> None:
    for page in (1, 2, 3):
        driver.put_pages([page])
    driver.find([1])
    for left in ({(1,), (3,)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left, "MATCH-16")


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_nodes_below_the_match_are_not_refreshed(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2])
    driver.put_pages([3])
    driver.use([1])
    for left in ({(1,), (3,)}, {(1,)}):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-10", needs=[Capability.SNAPSHOT], bigram=True)
def test_a_matched_chain_is_evicted_from_its_end(driver: Scenario) -> None:
    driver.put_pages([1])
    driver.put_pages([1, 2])
    driver.put_pages([3])
    driver.use([1, 2])
    for left in ({(1,), (1, 2)}, {(1,)}, set()):
        _evict_one(driver, FULL)
        _require_left(driver, FULL, left)


@clause("MATCH-17", components=[MAMBA])
def test_the_matched_state_nearest_to_the_root_is_the_oldest(driver: Scenario) -> None:
    chain = _with_recency(driver, Recency.PATH, states=3)
    _require_states_left(chain, "MATCH-17", prefixes(1, 2, 3), {(1, 2), (1, 2, 3)}, {(1, 2, 3)})


@clause("MATCH-18", components=[MAMBA])
def test_a_use_refreshes_the_state_that_it_reads_alone(driver: Scenario) -> None:
    chain = _with_recency(driver, Recency.USED, states=4)
    last = {(1, 2, 3, 4)}
    lefts = {(1, 2), (1, 2, 3), *last, (9,)}, {(1, 2, 3), *last, (9,)}, {*last, (9,)}, last
    _require_states_left(chain, "MATCH-18", *lefts)


@clause("MATCH-19", components=[MAMBA])
def test_a_path_is_thinned_before_its_last_state_goes(driver: Scenario) -> None:
    chain = _with_recency(driver, Recency.COVERAGE, states=4)
    last = {(1, 2, 3, 4)}
    lefts = {(1, 2), (1, 2, 3), *last, (9,)}, {(1, 2), *last, (9,)}, {*last, (9,)}, last
    _require_states_left(chain, "MATCH-19", *lefts)


@clause("MATCH-19", components=[MAMBA])
def test_no_state_at_a_fork_is_thinned(driver: Scenario) -> None:
    chain = _with_recency(driver, Recency.COVERAGE, states=2)
    for pages in ([1, 2, 3], [1, 2, 4]):
        chain.put_pages(pages)
    fork, tails = {(1, 2)}, {(1, 2, 3), (1, 2, 4)}
    _require_states_left(chain, "MATCH-19", {*fork, *tails, (9,)}, {*fork, *tails}, {*fork, (1, 2, 4)})


@clause("MATCH-10", components=[MAMBA], needs=[Capability.SNAPSHOT])
def test_a_match_refreshes_no_state_below_it(driver: Scenario) -> None:
    for pages in ([1], [1, 2], [9]):
        driver.put_pages(pages)
    driver.use([1])
    for left in ({(1,), (9,)}, {(1,)}):
        _evict_one(driver, MAMBA)
        _require_left(driver, MAMBA, left)


@clause("MATCH-10", components=[SWA], needs=[Capability.SNAPSHOT], bigram=True)
def test_the_matched_window_data_nearest_to_the_root_is_the_oldest(driver: Scenario) -> None:
    wide = driver.open_with_window(3)
    for pages in ([1], [1, 2], [1, 2, 3], [9]):
        wide.put_pages(pages)
    wide.use([1, 2, 3])
    for left in (prefixes(1, 2, 3), {(1, 2), (1, 2, 3)}, {(1, 2, 3)}):
        _evict_one(wide, SWA)
        _require_left(wide, SWA, left)


@clause("MATCH-10", components=[SWA], needs=[Capability.SNAPSHOT], bigram=True)
def test_data_before_the_window_is_not_refreshed(driver: Scenario) -> None:
    longer = list(range(1, 2 + driver.window_pages))
    driver.put_pages([1])
    driver.put_pages(longer)
    driver.put_pages([99])
    driver.use(longer)
    in_window = prefixes(*longer) - {(1,)}
    for left in ({*in_window, (99,)}, in_window):
        _evict_one(driver, SWA)
        _require_left(driver, SWA, left)


def _with_recency(driver: Scenario, recency: Recency, states: int) -> Scenario:
    """A cache of this recency with a state after each page of a prompt, and another prompt; then the first was used."""
    if recency not in driver.adapter.recencies:
        pytest.skip(f"the adapter does not declare the recency {recency.value!r}: its `recencies`")
    chain = driver.open_variant(recency=recency)
    chain.put_prefixes(range(1, states + 1))
    chain.put_pages([9])
    chain.use(range(1, states + 1))
    return chain


def _require_states_left(driver: Scenario, rule: str, *lefts: AbstractSet[Pages]) -> None:
    """Evict one state after the other: what must be left after each."""
    for left in lefts:
        _evict_one(driver, MAMBA)
        _require_left(driver, MAMBA, left, rule)


def _evict_one(driver: Scenario, component: str) -> None:
    driver.evict(component, driver.unit(component))


def _require_left(driver: Scenario, component: str, expected: AbstractSet[Pages], rule: str = "MATCH-10") -> None:
    left = set(driver.device_slots(component))
    assert left == expected, f"{rule}: {component}: expected {sorted(expected)} to be left, got {sorted(left)}"


# MATCH-15: a match ends at a node that all components accept.


WINDOW = 3
"""Pages of the window in these tests."""


@clause("MATCH-15", page_sizes=[1, 16])
@pytest.mark.parametrize("cut", [3, 4, 5])
def test_the_window_run_counts_across_a_node_without_a_state(driver: Scenario, cut: int) -> None:
    # Two tombstones, then four pages with SWA data and one state, at their end. A split leaves a node without a state
    # in between: MAMBA refuses it, and its pages count for the window all the same.
    wide = driver.open_with_window(WINDOW)
    wide.put_pages([1, 2, 3, 4, 5, 6], passed=2)
    assert wide.hit_pages([*range(1, cut + 1), 9]) == 0, f"MATCH-4: there is no state after {cut} pages"
    found = wide.hit_pages([1, 2, 3, 4, 5, 6])
    assert found == 6, f"MATCH-15: four pages end with a state, {WINDOW} are the window: 6 expected, found {found}"


@clause("MATCH-15")
def test_a_tombstone_without_a_state_resets_the_window_run(driver: Scenario) -> None:
    # Two pages, two tombstones without a state, two pages: each component must see the middle to know that the last two
    # pages are all that the window has.
    wide = driver.open_with_window(WINDOW)
    wide.put_pages([1, 2])
    result = wide.put_pages([1, 2, 3, 4, 5, 6], passed=4)
    found = wide.hit_pages([1, 2, 3, 4, 5, 6])
    assert found == 2, f"MATCH-15: a run of 2 pages is shorter than {WINDOW}: 2 pages expected, found {found}"
    expected = 2 * driver.config.page_size
    assert result.accepted_length == expected, f"MATCH-15: the insert accepted {result.accepted_length}, not {expected}"


@clause("MATCH-15")
@pytest.mark.parametrize(("passed", "expected"), [(2, 5), (3, 0)])
def test_a_state_is_valid_only_with_its_window(driver: Scenario, passed: int, expected: int) -> None:
    wide = driver.open_with_window(WINDOW)
    wide.put_pages([1, 2, 3, 4, 5], passed=passed)
    found = wide.hit_pages([1, 2, 3, 4, 5])
    assert found == expected, f"MATCH-15: {5 - passed} pages for a window of {WINDOW}: {expected} expected, got {found}"


@clause("MATCH-15")
def test_a_match_finds_the_deepest_node_that_all_components_accept(driver: Scenario) -> None:
    # After 2 pages all agree; after 4 only the window is there; after 5, without a state as well; after 7 all agree.
    wide = driver.open_with_window(1)
    wide.put_pages([1, 2])
    wide.put_pages([1, 2, 3, 4, 5, 6, 7])
    for cut, expected in {4: 2, 5: 2, 7: 7, 2: 2, 1: 0}.items():
        found = wide.hit_pages([*range(1, cut + 1), 9])
        assert found == expected, f"MATCH-15: {cut} pages and another: {expected} expected, found {found}"


@clause("MATCH-15", "MATCH-13")
@pytest.mark.parametrize(("shared", "expected"), [(4, None), (5, 5)])
def test_a_state_is_requested_only_where_the_window_is_cached(
    driver: Scenario, shared: int, expected: int | None
) -> None:
    wide = driver.open_with_window(WINDOW)
    wide.put_pages([1, 2, 3, 4, 5, 6], passed=2)
    found = wide.match(wide.key_of([*range(1, shared + 1), 9])).branching_seqlen
    page, chunk = driver.config.page_size, driver.config.mamba_chunk_size or 1
    wanted = None if expected is None else expected * page // chunk * chunk
    assert found == wanted, f"MATCH-15: {shared} pages shared, two of them tombstones: expected {wanted}, got {found}"


# MATCH-2, MATCH-5, MATCH-12: the best match on both tiers, the device anchor, and the host hits between them.


LOOKING = (Capability.HOST, Capability.SNAPSHOT)
WRITE_THROUGH = (WritePolicy.WRITE_THROUGH,)
RANDOM_RESIDENCIES = 5
"""How many random residencies a test draws."""


@clause("MATCH-1", "MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_match_finds_the_anchor_and_the_host_hits_of_the_residency_cases(driver: Scenario) -> None:
    with driver.host_variant(sliding_window_size=driver.window_tokens(WINDOW_PAGES)) as two_tiers:
        for case in residency_cases(two_tiers):
            build_residency(two_tiers, case.residency)
            require_match(two_tiers.match(two_tiers.key_of(case.pages)), case.expected(two_tiers), case)
            two_tiers.reset()


@clause("MATCH-1", "MATCH-2", needs=(*LOOKING, Capability.REQUESTS), write_policies=WRITE_THROUGH)
def test_a_look_up_finds_the_best_match_of_the_residency_cases(driver: Scenario) -> None:
    with driver.host_variant(sliding_window_size=driver.window_tokens(WINDOW_PAGES)) as two_tiers:
        for case in residency_cases(two_tiers):
            build_residency(two_tiers, case.residency)
            found, expected = two_tiers.lookup(two_tiers.key_of(case.pages)), case.expected(two_tiers).best
            assert found == expected, f"MATCH-1: {case}: expected {expected} elements cached on both tiers, got {found}"
            two_tiers.reset()


def random_cases(driver: Scenario, seed: int) -> Iterator[tuple[Scenario, Residency, Model]]:
    """Caches with a host tier, each with a prompt that is in a random residency, and what an oracle knows of it."""
    rng = Random(seed)
    for _ in range(RANDOM_RESIDENCIES):
        residency = random_residency(rng, driver.config.components)
        with driver.host_variant(sliding_window_size=driver.window_tokens(rng.randint(1, 3))) as two_tiers:
            build_residency(two_tiers, residency)
            two_tiers.check_every = 0
            yield two_tiers, residency, oracle_of(two_tiers, prompt_pages(residency))


@clause("MATCH-1", "MATCH-2", "MATCH-5", "MATCH-12", needs=LOOKING, write_policies=WRITE_THROUGH)
@pytest.mark.parametrize("seed", range(3))
def test_every_prefix_finds_what_the_oracle_finds(driver: Scenario, seed: int) -> None:
    for two_tiers, residency, oracle in random_cases(driver, seed):
        pages = prompt_pages(residency)
        # The longest first: a match that ends inside a node splits it.
        for count in range(len(pages), 0, -1):
            key = two_tiers.key_of(pages[:count])
            require_match(two_tiers.match(key, chunked=True), oracle.expected_match(key), (residency, count))


# MATCH-20: a match says which component cut it.


@clause("MATCH-20", needs=LOOKING, write_policies=WRITE_THROUGH)
@pytest.mark.parametrize("seed", range(3))
def test_a_match_says_which_component_cut_it(driver: Scenario, seed: int) -> None:
    for two_tiers, residency, oracle in random_cases(driver, seed):
        pages = prompt_pages(residency)
        for count in range(len(pages), 0, -1):
            key = two_tiers.key_of([*pages[:count], 99])
            oracle.require_refused(key, two_tiers.match(key, chunked=True))


@clause("MATCH-20", "MATCH-15")
def test_tokens_that_two_components_refuse_count_for_the_first(driver: Scenario) -> None:
    # Five pages without a state at their end, the second to the fifth without their window.
    wide = driver.open_with_window(WINDOW)
    wide.put_pages([1])
    wide.put_pages([1, 2, 3, 4, 5, 6, 7, 8, 9], passed=5)
    page = driver.config.page_size
    for prompt, expected in {(5, 99): (4, 0), (8, 99): (0, 7), (9,): (0, 0), (1, 99): (0, 0)}.items():
        found = wide.match(wide.key_of([*range(1, prompt[0] + 1), *prompt[1:]])).tokens_refused
        tokens = dict(zip((SWA, MAMBA), (pages * page for pages in expected), strict=True))
        assert {SWA: 0, MAMBA: 0, **found} == tokens, f"MATCH-20: {prompt}: expected {tokens}, got {found}"


@clause("MATCH-20", each=(SWA, MAMBA), needs=[Capability.SNAPSHOT])
def test_a_tombstone_says_whose_it_is(driver: Scenario, component: str) -> None:
    driver.make_tombstone(component)
    expected = len(TOMBSTONE) * driver.config.page_size
    found = driver.match(driver.key_of(TOMBSTONE)).tokens_refused
    got = found.get(component, 0)
    assert got == sum(found.values()) == expected, f"MATCH-20: {component} refuses {expected} tokens, got {found}"


@clause("MATCH-5", "MATCH-9", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_a_match_moves_nothing_between_the_tiers(driver: Scenario) -> None:
    for case in residency_cases(driver):
        build_residency(driver, case.residency)
        key = driver.key_of(prompt_pages(case.residency))
        before = snapshot_values(driver.snapshot())
        driver.match(key, chunked=True)
        assert snapshot_values(driver.snapshot()) == before, f"MATCH-9: a match of {case.residency} changed {before}"
        driver.reset()


@clause("MATCH-7", needs=LOOKING)
def test_a_node_that_left_both_tiers_is_not_found(driver: Scenario) -> None:
    driver.put_on_host([1, 2], [1, 2, 3, 4])
    handle = driver.best_match([1, 2, 3, 4])
    for expected in (2, 0):
        driver.evict_host(FULL, 1)
        found = driver.match(driver.key_of([1, 2, 3, 4]))
        hits = len(found.device_indices), found.host_hit_length // driver.config.page_size
        assert hits == (0, expected), f"MATCH-7: expected {expected} pages on the host alone, found {hits}"
    lower = found.component_host_hit_lengths
    assert not any(lower.values()), f"MATCH-7: nothing is on any tier, found {lower}"
    load_back = partial(driver.adapter.load_back, quota=None)
    for verb in (driver.adapter.lock, driver.adapter.lock_host, load_back):
        if Capability.REFUSALS in driver.adapter.capabilities:
            with driver.refused("MATCH-7", f"{verb} of a dead node"):
                verb(handle)


@clause("MATCH-13", needs=LOOKING, write_policies=WRITE_THROUGH)
def test_with_a_host_tier_a_branch_may_be_on_the_host(driver: Scenario) -> None:
    page = driver.config.page_size
    with driver.host_variant(mamba_chunk_size=page, sliding_window_size=driver.window_tokens(1)) as chunked:
        chunked.put_on_host([1, 2, 3, 4, 5, 6])
        for prompt, pages in {(1, 2, 3, 4, 5, 9): 5, (1, 2, 9): 2, (1, 2, 3, 4, 5, 6): None, (7,): None}.items():
            found = chunked.match(chunked.key_of(prompt)).branching_seqlen
            allowed = {None, None if pages is None else pages * page}
            assert found in allowed, f"MATCH-13: {prompt}: expected one of {allowed}, got {found}"
