"""KEY: which part of a prompt is cached, which requests share it, and the hashes of its pages."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.hybrid_model import HybridModel
from hicache.types import NO_SLOTS, SHARED, EventKind, Key, Namespace

from .scenario import FULL, Scenario, open_standard
from .snapshot_values import page_hash_chain, residency, snapshot_values

# KEY-1 to KEY-3: which part of a prompt is cached, and which requests share it.


OTHER = Namespace(lora="adapter", salt=None, tenant=None)


@clause("KEY-1", bigram=True)
@pytest.mark.parametrize("left_out", [0, 1])
def test_the_tail_after_the_last_whole_page_is_not_cached(driver: Scenario, left_out: int) -> None:
    page = driver.config.page_size
    tokens = driver.prompt([1, 2, 3])[: -left_out or None]
    whole = 3 * page if left_out == 0 else 2 * page
    result = driver.put(driver.key(tokens))
    assert (result.prefix_length, result.accepted_length) == (0, whole), f"KEY-1: {whole} expected, got {result}"
    longer = driver.match(driver.key([*tokens, *driver.prompt([8])]))
    assert len(longer.device_indices) == whole, f"KEY-1: {whole} expected, matched {len(longer.device_indices)}"


@clause("KEY-1", needs=[Capability.SNAPSHOT], bigram=True)
@pytest.mark.parametrize("cached", [False, True], ids=["empty", "cached"])
def test_a_key_shorter_than_a_page_matches_and_inserts_nothing(driver: Scenario, cached: bool) -> None:
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
def test_namespaces_share_no_node_no_slot_and_no_hash(driver: Scenario) -> None:
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
def test_an_eviction_in_one_namespace_leaves_the_other_unchanged(driver: Scenario) -> None:
    tokens = driver.prompt([1, 2])
    driver.put(driver.key(tokens, SHARED))
    driver.put(driver.key(tokens, OTHER))
    receipt = driver.lock(driver.match(driver.key(tokens, OTHER)).device_anchor)
    driver.evict_all(FULL)
    lengths = [len(driver.match(driver.key(tokens, namespace)).device_indices) for namespace in (SHARED, OTHER)]
    driver.unlock(receipt)
    assert lengths == [0, 2 * driver.config.page_size], f"KEY-2: only the unlocked one was to go, found {lengths}"


@clause("KEY-3", needs=[Capability.SNAPSHOT], bigram=True)
def test_bigram_elements_are_the_pairs_of_neighbours(driver: Scenario) -> None:
    page = driver.config.page_size
    tokens = list(range(100, 100 + 2 * page + 1))
    driver.put(driver.key(tokens))
    pairs = b"".join(struct.pack("<II", *pair) for pair in pairwise(tokens))
    longest = max((prefix for _, _, prefix in residency(driver.snapshot(), driver.config)), key=len)
    assert longest == pairs, f"KEY-3: the elements of {len(tokens)} tokens are their {len(tokens) - 1} pairs"


@clause("KEY-3", bigram=True)
def test_bigram_keys_count_one_element_less_than_tokens(driver: Scenario) -> None:
    page = driver.config.page_size
    tokens = list(range(100, 100 + 2 * page))
    assert driver.put(driver.key(tokens)).accepted_length == page, f"KEY-3: {2 * page} tokens are {2 * page - 1} pairs"
    assert driver.put(driver.key([*tokens, 7])).accepted_length == 2 * page, f"KEY-3: {2 * page + 1} tokens"


@clause("KEY-3", bigram=True)
def test_the_token_after_a_page_of_pairs_belongs_to_the_page(driver: Scenario) -> None:
    page = driver.config.page_size
    driver.put(driver.key(range(100, 100 + page + 1)))
    other = [*range(100, 100 + page), 7]
    hit = len(driver.match(driver.key(other)).device_indices)
    assert hit == 0, f"KEY-3: the last pair ends in another token, so that no page is shared; {hit} were found"


# KEY-4 to KEY-6: the chain of page hashes, which does not depend on the process or on the tree.


WIDE = (0, 1, 255, 256, 65_535, 65_536, 16_777_216, 2**31 - 1)
"""Token ids that need one to four bytes."""

DEPTH = 10_000
"""Nodes in a row, ten times deeper than Python lets a function call itself."""


@clause("KEY-4", bigram=True)
def test_page_hashes_are_the_hash_chain_of_the_contract(driver: Scenario) -> None:
    config = driver.config
    tokens = [WIDE[i % len(WIDE)] for i in range(5 * config.page_size - 1)]
    expected = page_hash_chain(tokens, config.page_size, bigram=config.bigram)
    assert len(expected) >= 3, "KEY-4: a chain of several pages is compared, and a part of one that is left out"
    found = list(driver.adapter.page_hashes(driver.key(tokens)))
    assert found == expected, f"KEY-4: expected {expected}, got {found}"


@clause("KEY-3", "KEY-4", needs=[Capability.BIGRAM, Capability.PAGED, Capability.HASHES])
@pytest.mark.parametrize("tokens", [15, 16, 17, 31, 32, 33, 48, 49])
def test_a_prompt_of_pairs_has_a_hash_for_each_whole_page(adapter_type: type[CacheAdapter], tokens: int) -> None:
    driver = open_standard(adapter_type, "full/page16/lru", bigram=True)
    found = list(driver.adapter.page_hashes(driver.key(range(1, tokens + 1))))
    expected = page_hash_chain(range(1, tokens + 1), 16, bigram=True)
    assert found == expected, f"KEY-3: {tokens} tokens are {tokens - 1} pairs: expected {expected}, got {found}"


@clause("KEY-4", needs=[Capability.NAMESPACES], bigram=True)
def test_a_namespace_seeds_the_chain(driver: Scenario) -> None:
    tokens = driver.prompt([1, 2, 3])
    namespaces = [SHARED, Namespace("a", None, None), Namespace(None, "a", None), Namespace(None, None, "a")]
    hashes = [
        digest for namespace in namespaces for digest in driver.adapter.page_hashes(driver.key(tokens, namespace))
    ]
    assert len(set(hashes)) == len(hashes) == 12, f"KEY-4: 4 namespaces of 3 pages have 12 hashes, got {hashes}"


@clause("KEY-4", needs=[Capability.PAGED, Capability.NAMESPACES])
def test_page_hashes_do_not_depend_on_the_process(adapter_type: type[CacheAdapter]) -> None:
    driver = open_standard(adapter_type, "full/page16/lru")
    key = driver.key(driver.prompt([1, 2]), Namespace("a", "b", None))
    request = {
        "adapter": f"{adapter_type.__module__}:{adapter_type.__qualname__}",
        "config": asdict(driver.config) | {"model": asdict(HybridModel.of(driver.config.model))},
        "namespace": asdict(key.namespace),
        "tokens": key.tokens.tolist(),
    }
    answer = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("hash_in_process.py"))],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, f"KEY-4: the other process failed: {answer.stderr}"
    expected = list(driver.adapter.page_hashes(key))
    assert json.loads(answer.stdout) == expected, f"KEY-4: PYTHONHASHSEED=1 gave {answer.stdout}, not {expected}"


@clause("KEY-5", needs=[Capability.EVENTS], bigram=True)
def test_the_parts_of_a_split_node_keep_the_hash_of_each_page(driver: Scenario) -> None:
    for cut in (1, 2, 3):
        whole, branch = [cut, 2, 3, 4], [*[cut, 2, 3, 4][:cut], 9]
        driver.put_pages(whole)
        driver.put_pages(branch)
        seen = len(driver.adapter.events())
        driver.evict_all(FULL)
        removed = {event.blocks for event in driver.adapter.events()[seen:] if event.component == FULL}
        chain, other = _chain(driver, whole), _chain(driver, branch)
        joined = [
            page for blocks in sorted(removed, key=lambda blocks: (chain + other).index(blocks[0])) for page in blocks
        ]
        assert joined == [*chain, other[-1]], f"KEY-5: cut after page {cut}: {joined}, expected {chain} and {other[-1]}"


@clause("KEY-5", needs=[Capability.EVENTS, Capability.SNAPSHOT], bigram=True)
def test_each_part_of_a_split_node_has_one_hash_per_page(driver: Scenario) -> None:
    driver.put_pages([1, 2, 3, 4])
    for shorter in ([1, 2, 3], [1]):
        driver.match(driver.key_of(shorter))
    lengths = sorted((node.end - node.start) // driver.config.page_size for node in driver.snapshot().nodes)
    driver.evict_all(FULL)
    removed = sorted(len(blocks) for blocks in _removed(driver))
    assert removed == lengths, f"KEY-5: expected {lengths} hashes in the events of removed nodes, got {removed}"


@clause("KEY-6", bigram=True)
def test_page_hashes_are_returned_in_a_new_list(driver: Scenario) -> None:
    key, longer = driver.key_of([1, 2, 3]), driver.key_of([1, 2, 3, 4])
    driver.put(key)
    first = driver.adapter.page_hashes(key)
    expected = list(first)
    if isinstance(first, list):
        first += ["mine"]
    assert list(driver.adapter.page_hashes(key)) == expected, "KEY-6: what a caller did to its list came back"
    extended = list(driver.adapter.page_hashes(longer))
    assert extended[:3] == expected, (
        f"KEY-6: the hashes of a prefix begin the longer list, got {extended} for {expected}"
    )
    assert len(extended) == 4, f"KEY-6: 4 pages have 4 hashes: expected 4, got {extended}"


@clause("KEY-6", bigram=True)
def test_page_hashes_do_not_depend_on_what_is_cached(driver: Scenario) -> None:
    key = driver.key_of([1, 2, 3])
    seen = {"empty": list(driver.adapter.page_hashes(key))}
    driver.put(key)
    seen["cached"] = list(driver.adapter.page_hashes(key))
    driver.put_pages([1, 9])
    seen["split"] = list(driver.adapter.page_hashes(key))
    driver.evict_all()
    seen["evicted"] = list(driver.adapter.page_hashes(key))
    assert all(hashes == seen["empty"] for hashes in seen.values()), f"KEY-6: {seen}"


@clause("KEY-6", needs=[Capability.EVENTS, Capability.SNAPSHOT])
def test_the_hashes_of_a_very_deep_chain_are_those_of_its_tokens(adapter_type: type[CacheAdapter]) -> None:
    driver = open_standard(adapter_type, "full/page1/lru", capacity_tokens={FULL: DEPTH})
    driver.check_every = 0
    tokens = range(1, DEPTH + 1)
    whole = driver.key(tokens)
    driver.put(whole)
    for length in range(DEPTH - 1, 0, -1):
        driver.adapter.match(Key(whole.tokens[:length], SHARED), chunked=True)
    nodes = len(driver.snapshot().nodes)
    assert nodes == DEPTH, f"KEY-6: each match cuts the first node: {DEPTH} nodes expected, got {nodes}"
    driver.check()
    driver.evict(FULL, DEPTH)
    removed = [block for blocks in reversed(_removed(driver)) for block in blocks]
    assert removed == page_hash_chain(tokens, 1, bigram=False), "KEY-6: the hashes of a chain of nodes, leaf by leaf"
    driver.check()


def _chain(driver: Scenario, pages: list[int]) -> list[str]:
    return page_hash_chain(driver.prompt(pages), driver.config.page_size, bigram=driver.config.bigram)


def _removed(driver: Scenario) -> list[tuple[str, ...]]:
    """The blocks of FULL that each event removed, in order."""
    return [
        event.blocks for event in driver.adapter.events() if event.component == FULL and event.kind is EventKind.REMOVED
    ]
