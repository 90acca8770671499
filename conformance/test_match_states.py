"""MATCH-4, MATCH-11, MATCH-13: a recurrent state is valid at one exact length, and requests get copies of it."""

from __future__ import annotations

import pytest

from hicache.config import Layout
from hicache.testing.adapter import Admission, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import HybridModel
from hicache.types import Handle, Pool

from .scenario import (
    MAMBA,
    TOMBSTONE,
    find,
    hit_pages,
    key_of,
    longer_prompt,
    make_tombstone,
    open_variant,
    put,
    recompute,
)
from .tree_view import device_ownership, device_slots


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
