"""The page hashes of nodes, computed at the first use and stored on the node."""

from __future__ import annotations

from hicache.keys import chain_seed, hash_pages
from hicache.metrics import Counters
from hicache.tree.node import Node


def node_hashes(node: Node, bytes_per_page: int, counters: Counters) -> list[bytes]:
    """The digests of the node's own pages, in a fresh list. Those of its ancestors are computed on the way."""
    missing: list[Node] = []
    step = node
    while step.parent is not None and step.hashes is None:
        missing.append(step)
        step = step.parent
    # A node gets its hashes after its ancestors, so that the walk may end at the first that has them.
    previous = step.last_hash() or chain_seed(node.namespace)
    for step in reversed(missing):
        step.hashes = hash_pages(step.key, bytes_per_page, previous)
        counters.pages_hashed += len(step.hashes)
        previous = step.hashes[-1]
    return list(node.hashes or ())


def prefix_hashes(node: Node, bytes_per_page: int, counters: Counters) -> list[bytes]:
    """The digests of all pages from the root to the node's end, in a fresh list (sglang#26177)."""
    node_hashes(node, bytes_per_page, counters)
    return [digest for step in node.path() for digest in step.hashes or ()]
