"""RadixTree: walk, split, attach, remove. It knows pages and nodes, and nothing of what components have on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hicache.errors import KeyFormError
from hicache.keys import TOKEN_BYTES, RadixKey, encode_namespace
from hicache.metrics import Counters
from hicache.tree.node import Node, NodeShape
from hicache.types import SHARED

OnSplit = Callable[[Node, Node], None]
"""Called with the new upper part, and the lower part, which stays the same object, once both are in the tree."""


class RadixTree:
    """Nodes below one root. A child is found by its first page; below the root by its namespace and first page."""

    def __init__(self, bytes_per_page: int, shape: NodeShape, on_split: OnSplit, counters: Counters) -> None:
        self.bytes_per_page = bytes_per_page
        self._shape = shape
        self._on_split = on_split
        self._counters = counters
        self.root = Node(None, b"", SHARED, 0, shape)

    def page_count(self, key: RadixKey) -> int:
        """How many whole pages a key has. Raises KeyFormError for an invalid key or another page size."""
        if not isinstance(key, RadixKey):
            raise KeyFormError(f"a key is what `key` makes of tokens, got {key!r}")
        if len(key.data) % self.bytes_per_page:
            raise KeyFormError(f"a key of {len(key.data)} bytes is of another cache: pages have {self.bytes_per_page}")
        return len(key.data) // self.bytes_per_page

    def walk(self, key: RadixKey) -> list[Node]:
        """The nodes on a key from the root's child down. The last one is split where the key leaves it."""
        return self.cut(*self.trace(key))

    def trace(self, key: RadixKey) -> tuple[list[Node], int]:
        """The nodes on a key from the root's child down, and the page at which the key leaves the last one."""
        total, data, page, counters = self.page_count(key), key.data, self.bytes_per_page, self._counters
        path: list[Node] = []
        node, edge = self.root, self._edge(self.root, key, 0)
        while node.end < total and (child := node.children.get(edge)) is not None:
            counters.nodes_visited += 1
            counters.bytes_compared += len(child.key)
            path.append(child)
            offset = node.end * page
            if not data.startswith(child.key, offset):
                return path, node.end + self._common_pages(child.key, data, offset)
            node, offset = child, child.end * page
            edge = data[offset : offset + page]
        return path, node.end

    def cut(self, path: list[Node], end: int) -> list[Node]:
        """The nodes of a path up to a page inside the last one, which is split there."""
        if path and end < path[-1].end:
            path[-1] = self.split(path[-1], end - path[-1].start)
        return path

    def _common_pages(self, run: bytes, data: bytes, offset: int) -> int:
        tokens = min(len(run), len(data) - offset) // TOKEN_BYTES
        left = np.frombuffer(run, dtype=np.int32, count=tokens)
        differs = left != np.frombuffer(data, dtype=np.int32, count=tokens, offset=offset)
        same = int(differs.argmax()) if differs.any() else tokens
        return same * TOKEN_BYTES // self.bytes_per_page

    def split(self, node: Node, pages: int) -> Node:
        """Split a node after so many pages; returns the new upper part. The lower part stays the same object."""
        parent = node.parent
        if parent is None or not 0 < pages < node.pages:
            raise ValueError(f"cannot split {node!r} after {pages} pages")
        cut = pages * self.bytes_per_page
        upper = Node(parent, node.key[:cut], node.namespace, parent.end + pages, self._shape)
        upper.creation_time, upper.priority, upper.hit_count = node.creation_time, node.priority, node.hit_count
        upper.stored, upper.storing, upper.store_failures = list(node.stored), node.storing, node.store_failures
        _link(upper, parent, node.edge)
        node.key = node.key[cut:]
        _link(node, upper, node.key[: self.bytes_per_page])
        if node.hashes is not None:
            upper.hashes, node.hashes = node.hashes[:pages], node.hashes[pages:]
        self._on_split(upper, node)
        return upper

    def attach(self, parent: Node, key: RadixKey, end: int) -> Node:
        """A new leaf below `parent` for the key's pages from the parent's end to `end`."""
        offset = parent.end * self.bytes_per_page
        node = Node(parent, key.data[offset : end * self.bytes_per_page], key.namespace, end, self._shape)
        _link(node, parent, self._edge(parent, key, offset))
        return node

    def remove(self, node: Node) -> Node:
        """Take a leaf out; returns its parent. Raises ValueError for the root, an inner node, or one that is gone."""
        parent = node.parent
        if parent is None or node.children or not node.alive:
            raise ValueError(f"only a leaf can be removed, not {node!r} with {len(node.children)} children")
        del parent.children[node.edge]
        node.root = None
        return parent

    def reset(self) -> None:
        """Take out every node."""
        for node in self.nodes():
            node.root = None
        self.root.children.clear()

    def nodes(self) -> Iterator[Node]:
        """Every node but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _edge(self, parent: Node, key: RadixKey, offset: int) -> bytes:
        first = key.data[offset : offset + self.bytes_per_page]
        return first if parent.parent else encode_namespace(key.namespace) + first


def _link(node: Node, parent: Node, edge: bytes) -> None:
    node.parent, node.edge = parent, edge
    parent.children[edge] = node
