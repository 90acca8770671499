"""The next steps after DictionaryAdapter: pages, then all that can be seen of the cache. The guide explains them.

Both adapt PrefixDictionary, unchanged. It sees each page of tokens as one element, and numbers pages instead of slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability, PageBytes
from hicache.testing.caches.dictionary import Array, DictionaryAdapter, PrefixDictionary
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.types import SHARED, EvictResult, InsertResult, Key, MatchResult, Pool, Sizes, Slots

TOKEN_BYTES = 4
LAYERS, SLOT_BYTES = 2, 8


class PagedDictionaryAdapter(DictionaryAdapter):
    """Pages of any size. A slot is a page's number times the tokens of a page, plus the offset in the page."""

    capabilities = DictionaryAdapter.capabilities | {Capability.PAGED}

    def __init__(self, config: CacheConfig) -> None:
        if config.components != ("full",):
            raise ConfigurationError(f"no cache of {config.components}")
        self.page_size = config.page_size
        self.cache = PrefixDictionary(config.capacity_tokens["full"] // config.page_size)

    def allocate(self, tokens: int) -> Slots | None:
        pages = self.cache.take(tokens // self.page_size)
        return None if pages is None else self.slots_of(pages)

    def free(self, slots: Slots) -> None:
        self.cache.give(self.pages_of(slots))

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        prefix, pages = self.cache.find(self.whole_pages(key))
        return MatchResult(self.slots_of(pages), prefix, prefix, 0, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        elements, pages = self.whole_pages(key), self.pages_of(slots)
        known = self.cache.keep(elements, pages)
        self.cache.give(pages[shared // self.page_size : known])
        return InsertResult(known * self.page_size, len(slots), elements.tobytes(), state_adopted=False)

    def evict(self, component: str, tokens: int) -> EvictResult:
        dropped = self.cache.drop(-(-tokens // self.page_size))
        return EvictResult({component: dropped * self.page_size}, dropped, refused=0)

    def whole_pages(self, key: Key) -> npt.NDArray[Any]:
        """The whole pages of a key, each as one element of the array."""
        end = len(key.tokens) // self.page_size * self.page_size
        return key.tokens[:end].view(f"V{TOKEN_BYTES * self.page_size}")

    def slots_of(self, pages: Array) -> Slots:
        """The slots of these pages, one for each token."""
        return (pages[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)

    def pages_of(self, slots: Slots) -> Array:
        """The pages that these slots are. Raises ValueError for a part of a page."""
        pages = slots[:: self.page_size] // self.page_size
        if not np.array_equal(self.slots_of(pages), slots):
            raise ValueError(f"the slots {slots} are not whole pages of {self.page_size}")
        return pages


class InspectedDictionaryAdapter(PagedDictionaryAdapter):
    """With a snapshot, in which each page is a node, with size counters, and with a pool for the bytes."""

    capabilities = PagedDictionaryAdapter.capabilities | {Capability.SNAPSHOT, Capability.SIZES, Capability.BYTES}

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self.capacity = config.capacity_tokens["full"]
        self.pool = np.zeros((LAYERS, self.capacity + self.page_size, SLOT_BYTES), dtype=np.uint8)

    def snapshot(self) -> Snapshot:
        prefixes = sorted(self.cache.slots, key=len)
        rows = {prefix: row for row, prefix in enumerate(prefixes)}
        free = self.slots_of(np.array(sorted(self.cache.free), dtype=np.int64))
        nodes = tuple(self.node(prefix, rows) for prefix in prefixes)
        return Snapshot(nodes, {"full": PoolView(self.capacity, free)}, host=None, storage=None)

    def node(self, prefix: bytes, rows: Mapping[bytes, int]) -> NodeView:
        """One page: the last one of the prefix."""
        above, segment = prefix[: -TOKEN_BYTES * self.page_size], prefix[-TOKEN_BYTES * self.page_size :]
        return NodeView(
            parent=rows.get(above, -1),
            namespace=SHARED,
            segment=segment,
            start=len(above) // TOKEN_BYTES,
            end=len(prefix) // TOKEN_BYTES,
            slots={"full": self.slots_of(np.array([self.cache.slots[prefix]], dtype=np.int64))},
            locks={"full": self.pins_below(prefix)},
            hits=None,
        )

    def sizes(self) -> Mapping[str, Sizes]:
        cached, free = len(self.cache.slots), len(self.cache.free)
        protected = sum(self.pins_below(prefix) > 0 for prefix in self.cache.slots)
        return {"full": Sizes(*(pages * self.page_size for pages in (cached - protected, protected, free)))}

    def pins_below(self, prefix: bytes) -> int:
        """How many pins protect the prefix: those of itself and of its extensions."""
        return sum(pinned.startswith(prefix) for pinned in self.cache.pins.values())

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.pool[layer, slots] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self.pool[layer, slots]
        return data
