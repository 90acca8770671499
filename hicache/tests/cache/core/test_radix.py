"""The radix tree by itself: walk, split, attach, remove, hashes. Without torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache.keys import RadixKey, chain_seed, encode_namespace, hash_pages
from hicache.metrics import Counters
from hicache.tree.hashes import node_hashes, prefix_hashes
from hicache.tree.node import Node, NodeShape
from hicache.tree.radix import RadixTree
from hicache.types import SHARED, Namespace

PAGE_SIZE = 2
BYTES_PER_PAGE = 8


def key_of(pages: list[int], namespace: Namespace = SHARED) -> RadixKey:
    ids = np.repeat(np.array(pages, dtype=np.int32), PAGE_SIZE)
    return RadixKey.of(ids, namespace, PAGE_SIZE, bigram=False)


def tree_with_splits() -> tuple[RadixTree, list[tuple[Node, Node]]]:
    splits: list[tuple[Node, Node]] = []
    tree = RadixTree(
        BYTES_PER_PAGE, NodeShape(1, has_host=False), lambda upper, lower: splits.append((upper, lower)), Counters()
    )
    return tree, splits


def grow(tree: RadixTree, key: RadixKey) -> Node:
    end = tree.page_count(key)
    node = [tree.root, *tree.walk(key)][-1]
    return node if node.end == end else tree.attach(node, key, end)


def test_a_walk_splits_where_keys_part() -> None:
    tree, splits = tree_with_splits()
    old = grow(tree, key_of([1, 2, 3]))
    new = grow(tree, key_of([1, 2, 4]))
    assert [(upper.end, lower is old) for upper, lower in splits] == [(2, True)], "the lower part keeps its identity"
    assert old.parent is new.parent, "both tails hang below the common part"
    assert (old.start, old.end, old.key) == (2, 3, key_of([3]).data), f"the old tail is page 3, got {old!r}"


def test_a_difference_inside_a_page_parts_at_the_page() -> None:
    tree, splits = tree_with_splits()
    grow(tree, RadixKey.of(np.array([1, 1, 2, 2], dtype=np.int32), SHARED, PAGE_SIZE, bigram=False))
    grow(tree, RadixKey.of(np.array([1, 1, 2, 3], dtype=np.int32), SHARED, PAGE_SIZE, bigram=False))
    assert [upper.end for upper, _ in splits] == [1], "MATCH-8: a boundary is a page boundary"


def test_namespaces_share_no_node() -> None:
    tree, _ = tree_with_splits()
    grow(tree, key_of([1]))
    assert not list(tree.walk(key_of([1], Namespace("a", None, None)))), "KEY-2"


def test_a_namespace_that_spells_a_page_finds_nothing() -> None:
    salted = Namespace(None, "1234567", None)
    page = np.frombuffer(encode_namespace(salted), dtype=np.int32)
    tree = RadixTree(page.nbytes, NodeShape(1, has_host=False), lambda *_: None, Counters())
    grow(tree, RadixKey.of(page, SHARED, len(page), bigram=False))
    found = list(tree.walk(RadixKey(b"", salted)))
    assert not found, f"SEC-1: an empty key in another namespace finds nothing, got {found}"


def test_only_a_leaf_can_be_removed() -> None:
    tree, _ = tree_with_splits()
    leaf = grow(tree, key_of([1, 2]))
    parent = grow(tree, key_of([1]))
    with pytest.raises(ValueError, match="only a leaf"):
        tree.remove(parent)
    above = tree.remove(leaf)
    assert above is parent, f"expected the parent of the removed leaf, got {above}"
    with pytest.raises(ValueError, match="only a leaf"):
        tree.remove(leaf)
    left = list(tree.nodes())
    assert left == [parent], f"expected the parent alone to be left, got {len(left)} nodes: {left}"


@pytest.mark.parametrize("pages", [0, 3, -1])
def test_a_split_leaves_no_empty_part(pages: int) -> None:
    tree, _ = tree_with_splits()
    node = grow(tree, key_of([1, 2, 3]))
    with pytest.raises(ValueError, match="cannot split"):
        tree.split(node, pages)


KEYS = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), max_size=12)


@given(KEYS)
def test_a_tree_holds_exactly_the_prefixes_that_grew(keys: list[list[int]]) -> None:
    tree, _ = tree_with_splits()
    for pages in keys:
        grow(tree, key_of(pages))
    held = {
        b"".join(step.key for step in node.path())[: end * BYTES_PER_PAGE]
        for node in tree.nodes()
        for end in range(node.start + 1, node.end + 1)
    }
    expected = {key_of(pages[:end]).data for pages in keys for end in range(1, len(pages) + 1)}
    assert held == expected, f"prefixes that are missing: {expected - held}, that were never added: {held - expected}"


@given(KEYS, KEYS)
def test_hashes_survive_splits(first: list[list[int]], then: list[list[int]]) -> None:
    tree, counters = tree_with_splits()[0], Counters()
    for pages in first:
        node_hashes(grow(tree, key_of(pages)), BYTES_PER_PAGE, counters)
    for pages in then:
        grow(tree, key_of(pages))
    for node in tree.nodes():
        whole = b"".join(step.key for step in node.path())
        expected = hash_pages(whole, BYTES_PER_PAGE, chain_seed(SHARED))
        assert prefix_hashes(node, BYTES_PER_PAGE, counters) == expected, f"KEY-5: {node!r}"


def test_hashes_are_lists_of_the_callers_own() -> None:
    tree, counters = tree_with_splits()[0], Counters()
    node = grow(tree, key_of([1, 2]))
    assert node.last_hash() is None, "KEY-6: no hash was computed yet"
    prefix_hashes(node, BYTES_PER_PAGE, counters).append(b"mine")
    node_hashes(node, BYTES_PER_PAGE, counters).append(b"mine")
    assert len(prefix_hashes(node, BYTES_PER_PAGE, counters)) == 2, "KEY-6: a fresh list on every call"
    last = prefix_hashes(node, BYTES_PER_PAGE, counters)[-1]
    assert node.last_hash() == last, f"KEY-6: expected the last hash {last!r}, got {node.last_hash()!r}"
    assert counters.pages_hashed == 2, "a page is hashed once"


def test_deep_chains_need_no_recursion() -> None:
    tree, counters = tree_with_splits()[0], Counters()
    depth = 5_000
    pages = list(range(1, depth + 1))
    grow(tree, key_of(pages))
    for end in range(depth - 1, 0, -1):
        grow(tree, key_of(pages[:end]))
    deepest = max(tree.nodes(), key=lambda node: node.end)
    found = len(deepest.path())
    assert found == depth, f"expected a path of {depth} nodes, got {found}"
    assert len(prefix_hashes(deepest, BYTES_PER_PAGE, counters)) == depth, "KEY-6: at any depth"
