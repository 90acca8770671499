"""DictionaryCache: a prefix cache with one dictionary entry per page instead of a tree, for tests of the replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.errors import ReceiptError
from hicache.testing.adapter import CacheAdapter, Capability, PageBytes
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.types import (
    NO_SLOTS,
    SHARED,
    Component,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    MatchResult,
    Pool,
    Sizes,
    Slots,
)

FULL = Component.FULL.value


@dataclass(slots=True)
class Entry:
    """A cached page: its number, and the number of receipts that protect it."""

    page: int
    locks: int


class DictionaryCache(CacheAdapter):
    """Pages by the bytes of their whole prefix, least recently used first. FULL alone, one namespace, LRU."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.PAGED, Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES}
    )

    def __init__(self, config: CacheConfig) -> None:
        self.page_size = config.page_size
        self.capacity = config.capacity_tokens[FULL]
        self.free_pages = list(range(self.capacity // self.page_size, 0, -1))
        self.entries: dict[bytes, Entry] = {}
        self.receipts: dict[object, bytes] = {}
        self.memory = np.zeros((self.capacity + self.page_size, 8), dtype=np.uint8)

    def allocate(self, tokens: int) -> Slots | None:
        pages = tokens // self.page_size
        self.evict(FULL, (pages - len(self.free_pages)) * self.page_size)
        if len(self.free_pages) < pages:
            return None
        return self._slots([self.free_pages.pop() for _ in range(pages)])

    def free(self, slots: Slots) -> None:
        self.free_pages.extend((slots[:: self.page_size] // self.page_size).tolist())

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found: list[bytes] = []
        for prefix in self._prefixes(key.tokens.tobytes()):
            if prefix not in self.entries:
                break
            found.append(prefix)
        self._touch(found)
        node = found[-1] if found else b""
        slots = self._slots([self.entries[prefix].page for prefix in found])
        return MatchResult(slots, node, node, 0, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        prefixes = list(self._prefixes(key.tokens.tobytes()))
        pages = (slots[:: self.page_size] // self.page_size).tolist()
        present = 0
        for prefix, page in zip(prefixes, pages, strict=True):
            kept = self.entries.setdefault(prefix, Entry(page, 0))
            present += kept.page == page and len(prefix) <= 4 * shared
            if kept.page != page:
                self.free_pages.append(page)
        self._touch(prefixes)
        length = len(prefixes) * self.page_size
        return InsertResult(present * self.page_size, length, prefixes[-1] if prefixes else b"", state_adopted=False)

    def lock(self, handle: Handle) -> Handle:
        for prefix in self._prefixes(handle):
            self.entries[prefix].locks += 1
        receipt = object()
        self.receipts[receipt] = handle
        return receipt

    def unlock(self, receipt: Handle) -> None:
        if receipt not in self.receipts:
            raise ReceiptError(f"{receipt!r} is not outstanding")
        for prefix in self._prefixes(self.receipts.pop(receipt)):
            self.entries[prefix].locks -= 1

    def evict(self, component: str, tokens: int) -> EvictResult:
        wanted = -(-tokens // self.page_size)
        victims = [prefix for prefix, entry in self.entries.items() if not entry.locks][: max(0, wanted)]
        for prefix in victims:
            self.free_pages.append(self.entries.pop(prefix).page)
        return EvictResult({FULL: len(victims) * self.page_size}, len(victims), refused=0)

    def reset(self) -> None:
        for entry in self.entries.values():
            entry.locks = 0
        self.evict(FULL, self.capacity)

    def layers(self, pool: Pool) -> int:
        return int(pool == Pool.KV)

    def slot_bytes(self, pool: Pool) -> int:
        return self.memory.shape[1]

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        self.memory[slots] = data

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        return self.memory[slots]

    def sizes(self) -> Mapping[str, Sizes]:
        protected = sum(1 for entry in self.entries.values() if entry.locks) * self.page_size
        evictable = len(self.entries) * self.page_size - protected
        return {FULL: Sizes(evictable, protected, len(self.free_pages) * self.page_size)}

    def snapshot(self) -> Snapshot:
        ordered = sorted(self.entries, key=len)
        rows = {prefix: row for row, prefix in enumerate(ordered)}
        views = tuple(self._view(prefix, rows) for prefix in ordered)
        return Snapshot(views, {FULL: PoolView(self.capacity, self._slots(self.free_pages))}, host=None, storage=None)

    def _view(self, prefix: bytes, rows: Mapping[bytes, int]) -> NodeView:
        page_bytes = 4 * self.page_size
        entry = self.entries[prefix]
        return NodeView(
            parent=rows.get(prefix[:-page_bytes], -1),
            namespace=SHARED,
            segment=prefix[-page_bytes:],
            start=(len(prefix) - page_bytes) // 4,
            end=len(prefix) // 4,
            slots={FULL: self._slots([entry.page])},
            locks={FULL: entry.locks},
            hits=0,
        )

    def _prefixes(self, elements: bytes) -> Iterator[bytes]:
        page_bytes = 4 * self.page_size
        return (elements[:end] for end in range(page_bytes, len(elements) + 1, page_bytes))

    def _touch(self, prefixes: list[bytes]) -> None:
        # A page is at least as recent as its descendants, so that the oldest page is always a leaf.
        for prefix in reversed(prefixes):
            self.entries[prefix] = self.entries.pop(prefix)

    def _slots(self, pages: list[int]) -> Slots:
        if not pages:
            return NO_SLOTS
        starts = np.array(pages, dtype=np.int64)[:, np.newaxis] * self.page_size
        return (starts + np.arange(self.page_size)).reshape(-1)
