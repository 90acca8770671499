"""KEY-1 to KEY-3: which part of a prompt is cached, and which requests share it."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest

from hicache.testing.adapter import Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.types import NO_SLOTS, SHARED, Namespace

from .scenario import FULL, evict_all
from .tree_view import residency, snapshot_values

OTHER = Namespace(lora="adapter", salt=None, tenant=None)


@clause("KEY-1", bigram=True)
@pytest.mark.parametrize("left_out", [0, 1])
def test_the_tail_after_the_last_whole_page_is_not_cached(driver: Driver, left_out: int) -> None:
    page = driver.config.page_size
    tokens = driver.prompt([1, 2, 3])[: -left_out or None]
    whole = 3 * page if left_out == 0 else 2 * page
    result = driver.put(driver.key(tokens))
    assert (result.prefix_length, result.accepted_length) == (0, whole), f"KEY-1: {whole} expected, got {result}"
    longer = driver.match(driver.key([*tokens, *driver.prompt([8])]))
    assert len(longer.device_indices) == whole, f"KEY-1: {whole} expected, matched {len(longer.device_indices)}"


@clause("KEY-1", needs=[Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("cached", [False, True], ids=["empty", "cached"])
def test_a_key_shorter_than_a_page_matches_and_inserts_nothing(driver: Driver, cached: bool) -> None:
    whole = driver.prompt([1])
    if cached:
        driver.put(driver.key(whole))
    before = snapshot_values(driver.snapshot())
    for count in sorted({0, 1, len(whole) - 1} - {len(whole)}):
        key = driver.key(whole[:count])
        matched = driver.match(key).device_indices
        result = driver.insert(key, NO_SLOTS, shared=0)
        lengths = (len(matched), result.prefix_length, result.accepted_length, result.state_adopted)
        assert lengths == (0, 0, 0, False), f"KEY-1: {count} tokens of a page of {len(whole)} gave {lengths}"
    assert snapshot_values(driver.snapshot()) == before, "KEY-1: a key shorter than a page changed the cache"


@clause("KEY-2", needs=[Capability.SNAPSHOT, Capability.HASHES], bigram=True)
def test_namespaces_share_no_node_no_slot_and_no_hash(driver: Driver) -> None:
    tokens = driver.prompt([1, 2])
    keys = [driver.key(tokens, SHARED), driver.key(tokens, OTHER)]
    first, second = (driver.put(key) for key in keys)
    assert (first.prefix_length, second.prefix_length) == (0, 0), "KEY-2: the second namespace found the first's pages"
    matched = [set(driver.match(key).device_indices.tolist()) for key in keys]
    assert all(len(slots) == 2 * driver.config.page_size for slots in matched), (
        f"KEY-2: each has its own hit: {matched}"
    )
    assert not matched[0] & matched[1], f"KEY-2: slots {matched[0] & matched[1]} are shared"
    namespaces = {namespace for _, namespace, _ in residency(driver.snapshot(), driver.config)}
    assert namespaces == {SHARED, OTHER}, f"KEY-2: nodes of {namespaces}"
    hashes = [set(driver.adapter.page_hashes(key)) for key in keys]
    assert not hashes[0] & hashes[1], f"KEY-2: hashes {hashes[0] & hashes[1]} are shared"


@clause("KEY-2", needs=[Capability.SNAPSHOT], bigram=True)
def test_an_eviction_in_one_namespace_leaves_the_other_unchanged(driver: Driver) -> None:
    tokens = driver.prompt([1, 2])
    driver.put(driver.key(tokens, SHARED))
    driver.put(driver.key(tokens, OTHER))
    receipt = driver.lock(driver.match(driver.key(tokens, OTHER)).device_anchor)
    evict_all(driver, FULL)
    lengths = [len(driver.match(driver.key(tokens, namespace)).device_indices) for namespace in (SHARED, OTHER)]
    driver.unlock(receipt)
    assert lengths == [0, 2 * driver.config.page_size], f"KEY-2: only the unlocked one was to go, found {lengths}"


@clause("KEY-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_bigram_elements_are_the_pairs_of_neighbours(driver: Driver) -> None:
    page = driver.config.page_size
    tokens = list(range(100, 100 + 2 * page + 1))
    driver.put(driver.key(tokens))
    pairs = b"".join(struct.pack("<II", *pair) for pair in pairwise(tokens))
    longest = max((prefix for _, _, prefix in residency(driver.snapshot(), driver.config)), key=len)
    assert longest == pairs, f"KEY-3: the elements of {len(tokens)} tokens are their {len(tokens) - 1} pairs"


@clause("KEY-3", bigram=True)
def test_bigram_keys_count_one_element_less_than_tokens(driver: Driver) -> None:
    page = driver.config.page_size
    tokens = list(range(100, 100 + 2 * page))
    assert driver.put(driver.key(tokens)).accepted_length == page, f"KEY-3: {2 * page} tokens are {2 * page - 1} pairs"
    assert driver.put(driver.key([*tokens, 7])).accepted_length == 2 * page, f"KEY-3: {2 * page + 1} tokens"


@clause("KEY-3", bigram=True)
def test_the_token_after_a_page_of_pairs_belongs_to_the_page(driver: Driver) -> None:
    page = driver.config.page_size
    driver.put(driver.key(range(100, 100 + page + 1)))
    other = [*range(100, 100 + page), 7]
    hit = len(driver.match(driver.key(other)).device_indices)
    assert hit == 0, f"KEY-3: the last pair ends in another token, so that no page is shared; {hit} were found"
