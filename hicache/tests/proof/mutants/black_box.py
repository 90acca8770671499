"""Caches to break that show nothing but answers: a radix tree with verbs alone, and blocks with requests alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import Capability
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.caches.dictionary import Array
from hicache.testing.caches.paged_dictionary import PagedDictionaryAdapter
from hicache.types import EvictResult, InsertResult, Key, MatchResult, Slots


@dataclass(slots=True, eq=False)
class Node:
    """A run of pages below its parent. `edge`: the tokens of each page. `pages`: where each is. `used`: when last."""

    parent: Node | None
    edge: list[bytes]
    pages: list[int]
    children: dict[bytes, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0


class PlainRadix:
    """Pages of tokens in a radix tree. It evicts whole leaves, the least recently used first."""

    def __init__(self, pages: int) -> None:
        self.free = list(range(1, pages + 1))
        self.now = 0
        self.root = Node(None, [], [])

    def take(self, count: int) -> list[int] | None:
        """Take free pages, and evict what is missing; None when there are too few."""
        evictable = sum(len(node.pages) for node in self.nodes(self.root) if not node.locks)
        if count > len(self.free) + evictable:
            return None
        self.evict(count - len(self.free))
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def give(self, pages: list[int]) -> None:
        """Give pages back."""
        self.free += pages

    def find(self, edge: list[bytes]) -> tuple[Node, list[int]]:
        """The node where the longest cached prefix ends, and the pages of the prefix."""
        self.now += 1
        node, pages = self.root, list[int]()
        while len(pages) < len(edge) and (child := node.children.get(edge[len(pages)])) is not None:
            common = self.common(child, edge[len(pages) :])
            node = child if common == len(child.edge) else self.split(child, common)
            node.used = self.now
            pages += node.pages
        return node, pages

    def keep(self, edge: list[bytes], pages: list[int], shared: int) -> tuple[Node, int]:
        """Insert pages, of which the first `shared` are the tree's. Returns where it ends, and what it had before."""
        node, known = self.find(edge)
        self.give(pages[shared : len(known)])
        if len(known) < len(edge):
            leaf = Node(node, edge[len(known) :], pages[len(known) :], used=self.now)
            node.children[leaf.edge[0]] = leaf
            node = leaf
        return node, len(known)

    def lock(self, node: Node) -> Node:
        """Protect a node and those above it."""
        for one in self.path(node):
            one.locks += 1
        return node

    def unlock(self, node: Node) -> None:
        """Release one lock of a node."""
        for one in self.path(node):
            one.locks -= 1

    def evict(self, count: int) -> int:
        """Evict leaves until `count` pages are free, or no leaf is left; returns how many that were."""
        freed = 0
        while freed < count and (leaves := [one for one in self.nodes(self.root) if self.is_evictable(one)]):
            victim = min(leaves, key=lambda leaf: leaf.used)
            self.remove(victim)
            freed += len(victim.pages)
        return freed

    def is_evictable(self, node: Node) -> bool:
        """Whether it is a leaf without a lock."""
        return not node.children and not node.locks

    def remove(self, leaf: Node) -> None:
        """Remove a leaf, and free its pages."""
        assert leaf.parent is not None, "the root is not a leaf"
        del leaf.parent.children[leaf.edge[0]]
        self.give(leaf.pages)

    def clear(self) -> None:
        """Remove everything."""
        for node in self.nodes(self.root):
            self.give(node.pages)
        self.root = Node(None, [], [])

    def common(self, node: Node, edge: list[bytes]) -> int:
        """How many pages a node and a key have in common."""
        equal = [one == other for one, other in zip(node.edge, edge, strict=False)]
        return equal.index(False) if False in equal else len(equal)

    def split(self, node: Node, at: int) -> Node:
        """Divide a node after so many pages; returns the upper part, which is new."""
        assert node.parent is not None, "the root is never divided"
        upper = Node(node.parent, node.edge[:at], node.pages[:at], locks=node.locks, used=node.used)
        node.parent.children[upper.edge[0]] = upper
        node.parent, node.edge, node.pages = upper, node.edge[at:], node.pages[at:]
        upper.children[node.edge[0]] = node
        return upper

    def path(self, node: Node) -> Iterator[Node]:
        """A node and those above it, without the root."""
        while node.parent is not None:
            yield node
            node = node.parent

    def nodes(self, node: Node) -> Iterator[Node]:
        """All nodes below this one."""
        for child in list(node.children.values()):
            yield child
            yield from self.nodes(child)


class PlainRadixAdapter(PagedDictionaryAdapter):
    """Verbs, pages and a reset over the radix tree."""

    cache_type: ClassVar[type[PlainRadix]] = PlainRadix

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.tree = self.cache_type(config.capacity_tokens["full"] // config.page_size)

    def allocate(self, tokens: int) -> Slots | None:
        pages = self.tree.take(tokens // self.page_size)
        return None if pages is None else self.slots_of(_array(pages))

    def free(self, slots: Slots) -> None:
        self.tree.give(self.pages_of(slots).tolist())

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        node, pages = self.tree.find(self._edge(key))
        return MatchResult(self.slots_of(_array(pages)), node, node, 0, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        node, known = self.tree.keep(self._edge(key), self.pages_of(slots).tolist(), shared // self.page_size)
        return InsertResult(known * self.page_size, len(slots), node, state_adopted=False)

    def lock(self, handle: Node) -> Node:
        return self.tree.lock(handle)

    def unlock(self, receipt: Node) -> None:
        self.tree.unlock(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        freed = self.tree.evict(-(-tokens // self.page_size)) * self.page_size
        return EvictResult({component: freed}, freed, refused=0)

    def reset(self) -> None:
        self.tree.clear()

    def _edge(self, key: Key) -> list[bytes]:
        return [page.tobytes() for page in self.whole_pages(key)]


def _array(pages: list[int]) -> Array:
    return np.array(pages, dtype=np.int64)


class EvictsLocked(PlainRadix):
    """Evicts a leaf although it is locked."""

    def is_evictable(self, node: Node) -> bool:
        return not node.children


class RadixEvictsLocked(PlainRadixAdapter):
    """The example of the README. It is a class, so that `hicache verify` can be run on it."""

    cache_type = EvictsLocked


class Requests(BlockCacheAdapter):
    """The block cache without anything that shows it."""

    capabilities = frozenset(
        {
            *(Capability.REQUESTS, Capability.TABLES, Capability.PAGED, Capability.NAMESPACES),
            Capability.PREEMPTION,
        }
    )
