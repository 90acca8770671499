"""KEY-4 to KEY-6: the chain of page hashes, which does not depend on the process or on the tree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clause
from hicache.testing.driving.driver import Driver
from hicache.testing.hybrid_model import HybridModel
from hicache.types import SHARED, EventKind, Key, Namespace

from .scenario import FULL, evict_all, key_of, open_standard, put
from .tree_view import page_hash_chain

WIDE = (0, 1, 255, 256, 65_535, 65_536, 16_777_216, 2**31 - 1)
"""Token ids that need one to four bytes."""

DEPTH = 10_000
"""Nodes in a row, ten times deeper than Python lets a function call itself."""


@clause("KEY-4", bigram=True)
def test_page_hashes_are_the_hash_chain_of_the_contract(driver: Driver) -> None:
    config = driver.config
    tokens = [WIDE[i % len(WIDE)] for i in range(5 * config.page_size - 1)]
    expected = page_hash_chain(tokens, config.page_size, bigram=config.bigram)
    assert len(expected) >= 3, "KEY-4: a chain of several pages is compared, and a part of one that is left out"
    found = list(driver.adapter.page_hashes(driver.key(tokens)))
    assert found == expected, f"KEY-4: expected {expected}, got {found}"


@clause("KEY-4", needs=[Capability.NAMESPACES], bigram=True)
def test_a_namespace_seeds_the_chain(driver: Driver) -> None:
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
def test_the_parts_of_a_split_node_keep_the_hash_of_each_page(driver: Driver) -> None:
    for cut in (1, 2, 3):
        whole, branch = [cut, 2, 3, 4], [*[cut, 2, 3, 4][:cut], 9]
        put(driver, whole)
        put(driver, branch)
        seen = len(driver.adapter.events())
        evict_all(driver, FULL)
        removed = {event.blocks for event in driver.adapter.events()[seen:] if event.component == FULL}
        chain, other = _chain(driver, whole), _chain(driver, branch)
        joined = [
            page for blocks in sorted(removed, key=lambda blocks: (chain + other).index(blocks[0])) for page in blocks
        ]
        assert joined == [*chain, other[-1]], f"KEY-5: cut after page {cut}: {joined}, expected {chain} and {other[-1]}"


@clause("KEY-5", needs=[Capability.EVENTS, Capability.SNAPSHOT], bigram=True)
def test_each_part_of_a_split_node_has_one_hash_per_page(driver: Driver) -> None:
    put(driver, [1, 2, 3, 4])
    for shorter in ([1, 2, 3], [1]):
        driver.match(key_of(driver, shorter))
    lengths = sorted((node.end - node.start) // driver.config.page_size for node in driver.snapshot().nodes)
    evict_all(driver, FULL)
    removed = sorted(len(blocks) for blocks in _removed(driver))
    assert removed == lengths, f"KEY-5: expected {lengths} hashes in the events of removed nodes, got {removed}"


@clause("KEY-6", bigram=True)
def test_page_hashes_are_returned_in_a_new_list(driver: Driver) -> None:
    key, longer = key_of(driver, [1, 2, 3]), key_of(driver, [1, 2, 3, 4])
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
def test_page_hashes_do_not_depend_on_what_is_cached(driver: Driver) -> None:
    key = key_of(driver, [1, 2, 3])
    seen = {"empty": list(driver.adapter.page_hashes(key))}
    driver.put(key)
    seen["cached"] = list(driver.adapter.page_hashes(key))
    put(driver, [1, 9])
    seen["split"] = list(driver.adapter.page_hashes(key))
    evict_all(driver)
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


def _chain(driver: Driver, pages: list[int]) -> list[str]:
    return page_hash_chain(driver.prompt(pages), driver.config.page_size, bigram=driver.config.bigram)


def _removed(driver: Driver) -> list[tuple[str, ...]]:
    """The blocks of FULL that each event removed, in order."""
    return [
        event.blocks for event in driver.adapter.events() if event.component == FULL and event.kind is EventKind.REMOVED
    ]
