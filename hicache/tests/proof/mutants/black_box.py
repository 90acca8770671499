"""ROWS: caches with verbs or requests alone that free what is read, hand it out twice, or find what is gone."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.caches.block_cache import Block, BlockCache
from hicache.testing.caches.blocks import BlockCacheAdapter
from hicache.testing.caches.dictionary import Array, PrefixDictionary
from hicache.testing.caches.paged_dictionary import PagedDictionaryAdapter
from hicache.testing.plugin.tags import CLAUSE_ID
from hicache.tests.proof.mutants.block_cache import AllocatesBeforeItTakes, DuplicateFreedInUse
from hicache.tests.proof.mutants.plain_radix import Node, PlainRadix, PlainRadixAdapter
from hicache.tests.proof.mutants.rows import Row

# A dictionary of prefixes.


class DictionaryOf(PagedDictionaryAdapter):
    """The adapter of the paged dictionary over another cache."""

    cache_type: ClassVar[type[PrefixDictionary]] = PrefixDictionary

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.cache = self.cache_type(config.capacity_tokens["full"] // config.page_size)


class _PinsNothing(PrefixDictionary):
    def pin(self, prefix: bytes) -> object:
        return super().pin(b"")


class DictionaryPinsNothing(DictionaryOf):
    """A lock protects nothing."""

    cache_type = _PinsNothing


class _PinsTheEnd(PrefixDictionary):
    def _unpinned(self, limit: int) -> list[bytes]:
        pinned = set(self.pins.values())
        return [prefix for prefix in self.slots if prefix not in pinned][:limit]


class DictionaryPinsTheEnd(DictionaryOf):
    """A lock protects the last page of a prefix, and not those before it."""

    cache_type = _PinsTheEnd


class _UnpinsAll(PrefixDictionary):
    def unpin(self, pin: object) -> None:
        released = self.pins.get(pin)
        self.pins = {one: prefix for one, prefix in self.pins.items() if prefix != released}


class DictionaryUnpinsAll(DictionaryOf):
    """The release of a lock releases every lock of the same prefix."""

    cache_type = _UnpinsAll


class _GivesTwice(PrefixDictionary):
    def take(self, count: int) -> Array | None:
        taken = super().take(count)
        if taken is not None and count > 1:
            self.free.add(int(taken[-1]))
        return taken


class DictionaryGivesTwice(DictionaryOf):
    """The last page of an allocation stays free."""

    cache_type = _GivesTwice


class _KeepsEvicted(PrefixDictionary):
    def drop(self, count: int) -> int:
        victims = self._unpinned(count)
        self.free.update(self.slots[prefix] for prefix in victims)
        return len(victims)


class DictionaryKeepsEvicted(DictionaryOf):
    """What was evicted is still found."""

    cache_type = _KeepsEvicted


class _KeepsAfterReset(PrefixDictionary):
    def clear(self) -> None:
        self.pins.clear()
        self.free.update(self.slots.values())


class DictionaryKeepsAfterReset(DictionaryOf):
    """What was cached before a reset is still found."""

    cache_type = _KeepsAfterReset


class _KeepsTheFreed(PrefixDictionary):
    def keep(self, tokens: npt.NDArray[np.void], slots: Array) -> int:
        known = super().keep(tokens, slots)
        prefixes = [tokens[:end].tobytes() for end in range(1, known + 1)]
        self.slots.update(zip(prefixes, slots[:known].tolist(), strict=True))
        return known


class DictionaryKeepsTheFreed(DictionaryOf):
    """An insert takes the duplicates for what was cached, and frees them all the same."""

    cache_type = _KeepsTheFreed


# A radix tree.


class _EvictsLocked(PlainRadix):
    def is_evictable(self, node: Node) -> bool:
        return not node.children


class RadixEvictsLocked(PlainRadixAdapter):
    """A leaf is evicted although it is locked."""

    cache_type = _EvictsLocked


class _SplitDropsLocks(PlainRadix):
    def split(self, node: Node, at: int) -> Node:
        upper = super().split(node, at)
        node.locks = 0
        return upper

    def unlock(self, node: Node) -> None:
        for one in self.path(node):
            # A count below zero would be another mistake.
            one.locks = max(0, one.locks - 1)


class RadixSplitDropsLocks(PlainRadixAdapter):
    """The lower part of a split loses its locks."""

    cache_type = _SplitDropsLocks


class _UnlocksAll(PlainRadix):
    def unlock(self, node: Node) -> None:
        for one in self.path(node):
            one.locks = 0


class RadixUnlocksAll(PlainRadixAdapter):
    """The release of a lock releases all others on its path."""

    cache_type = _UnlocksAll


class _FreesTheShared(PlainRadix):
    def keep(self, edge: list[bytes], pages: list[int], shared: int) -> tuple[Node, int]:
        return super().keep(edge, pages, max(0, shared - 1))


class RadixFreesTheShared(PlainRadixAdapter):
    """An insert frees the last page that the request shares with the tree, as if it were a duplicate."""

    cache_type = _FreesTheShared


class _KeepsEvictedLeaves(PlainRadix):
    def remove(self, leaf: Node) -> None:
        super().remove(leaf)
        assert leaf.parent is not None, "the root is not a leaf"
        if leaf.parent is not self.root:
            leaf.parent.edge, leaf.parent.pages = leaf.parent.edge + leaf.edge, leaf.parent.pages + leaf.pages


class RadixKeepsEvictedLeaves(PlainRadixAdapter):
    """The pages of an evicted leaf are added to the node above it."""

    cache_type = _KeepsEvictedLeaves


class _ComparesTheFirst(PlainRadix):
    def common(self, node: Node, edge: list[bytes]) -> int:
        return min(len(node.edge), len(edge))


class RadixComparesTheFirst(PlainRadixAdapter):
    """A node is found by its first page; the others are not compared."""

    cache_type = _ComparesTheFirst


class _SwapsHalves(PlainRadix):
    def split(self, node: Node, at: int) -> Node:
        pages = node.pages
        upper = super().split(node, at)
        if len(pages) == 2 * at:
            upper.pages, node.pages = node.pages, upper.pages
        return upper


class RadixSwapsHalves(PlainRadixAdapter):
    """A split in the middle swaps the pages of the two parts."""

    cache_type = _SwapsHalves


class _FreesTwice(PlainRadix):
    def give(self, pages: list[int]) -> None:
        super().give(pages + pages[1:])


class RadixFreesTwice(PlainRadixAdapter):
    """All pages but the first are freed twice."""

    cache_type = _FreesTwice


# Hashed blocks, by requests alone.


class Requests(BlockCacheAdapter):
    """The block cache without anything that shows it."""

    capabilities = frozenset({Capability.REQUESTS, Capability.TABLES, Capability.PAGED, Capability.NAMESPACES})


class BlocksFreeDuplicates(Requests):
    """Frees a page that another request computed too, while its own request reads it."""

    cache_type: ClassVar[type[BlockCache]] = DuplicateFreedInUse


class BlocksAllocateFirst(Requests):
    """A request may evict its own prefix."""

    cache_type: ClassVar[type[BlockCache]] = AllocatesBeforeItTakes


class _FreesForAll(BlockCache):
    def _free(self, block: Block) -> None:
        block.references = min(block.references, 1)
        if block.references:
            super()._free(block)


class BlocksFreeForAll(Requests):
    """The end of a request frees the pages that another one reads too."""

    cache_type: ClassVar[type[BlockCache]] = _FreesForAll


class _KeepsTheHash(BlockCache):
    def _drop(self, block: Block) -> None:
        """Leave the content of a block that is handed out again."""


class BlocksKeepTheHash(Requests):
    """A page that was handed out again is found for what it had before."""

    cache_type: ClassVar[type[BlockCache]] = _KeepsTheHash


VERBS = "test_machines.py::test_any_order_of_verbs_from_outside[full]"
REQUESTS = "test_machines.py::test_any_mix_of_requests_from_outside[full]"


def _row(slug: str, adapter: type[CacheAdapter], told: str, test: str = VERBS) -> Row:
    return Row(slug, "ours", tuple(CLAUSE_ID.findall(told)), adapter, test, told)


ROWS = (
    _row("dictionary-pins-nothing", DictionaryPinsNothing, "LOCK-5"),
    _row("dictionary-pins-the-end", DictionaryPinsTheEnd, "LOCK-5"),
    _row("dictionary-unpins-all", DictionaryUnpinsAll, "LOCK-5"),
    _row("dictionary-gives-twice", DictionaryGivesTwice, "POOL-2|LOCK-5|MATCH-1|pop from an empty set"),
    _row("dictionary-keeps-evicted", DictionaryKeepsEvicted, "MATCH-1|EVICT-1|POOL-2|LOCK-5"),
    _row("dictionary-keeps-after-reset", DictionaryKeepsAfterReset, "EVICT-9"),
    _row("dictionary-keeps-the-freed", DictionaryKeepsTheFreed, "MATCH-1|POOL-2|POOL-3|LOCK-5"),
    _row("radix-evicts-locked", RadixEvictsLocked, "LOCK-5"),
    _row("radix-split-drops-locks", RadixSplitDropsLocks, "LOCK-5"),
    _row("radix-unlocks-all", RadixUnlocksAll, "LOCK-5|POOL-3"),
    _row("radix-frees-the-shared", RadixFreesTheShared, "LOCK-5|MATCH-1|POOL-2"),
    _row("radix-keeps-evicted-leaves", RadixKeepsEvictedLeaves, "MATCH-1|EVICT-1|POOL-2|LOCK-5"),
    _row("radix-compares-the-first", RadixComparesTheFirst, "MATCH-1"),
    _row("radix-swaps-halves", RadixSwapsHalves, "MATCH-1"),
    _row("radix-frees-twice", RadixFreesTwice, "POOL-2|LOCK-5"),
    _row("blocks-free-duplicates", BlocksFreeDuplicates, "POOL-2", REQUESTS),
    _row("blocks-allocate-first", BlocksAllocateFirst, "POOL-2|MATCH-1", REQUESTS),
    _row("blocks-free-for-all", BlocksFreeForAll, "POOL-2", REQUESTS),
    _row("blocks-keep-the-hash", BlocksKeepTheHash, "MATCH-1", REQUESTS),
)
"""One for each kind of mistake, and for each design."""
