"""FlatCache: the minimal capabilities, over a dictionary of page prefixes, without a snapshot."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.types import Component, EvictResult, InsertResult, Key, MatchResult, Namespace, Slots

Prefix = tuple[Namespace, bytes]


class FlatCache(CacheAdapter):
    """Stores whole pages of FULL by their whole prefix; a handle is a prefix."""

    interface = 2
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.VERBS, Capability.RESET, Capability.PAGED, Capability.NAMESPACES}
    )

    def __init__(self, config: CacheConfig) -> None:
        self.page_size = config.page_size
        self.pages: dict[Prefix, int] = {}
        self.locks: list[Prefix] = []
        self.free_pages = list(range(config.capacity_tokens[Component.FULL] // config.page_size, 0, -1))

    def allocate(self, tokens: int) -> Slots | None:
        count = tokens // self.page_size
        if count > len(self.free_pages):
            return None
        return self._slots([self.free_pages.pop() for _ in range(count)])

    def free(self, slots: Slots) -> None:
        self.free_pages += (slots[:: self.page_size] // self.page_size).tolist()

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = [prefix for prefix in self._prefixes(key) if prefix in self.pages]
        anchor = found[-1] if found else (key.namespace, b"")
        indices = self._slots([self.pages[prefix] for prefix in found])
        return MatchResult(indices, anchor, anchor, 0, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        prefixes = self._prefixes(key)
        known = [prefix in self.pages for prefix in prefixes]
        given = slots.reshape(-1, self.page_size)
        for number, prefix in enumerate(prefixes):
            if not known[number]:
                self.pages[prefix] = int(given[number, 0]) // self.page_size
            elif number * self.page_size >= shared:
                self.free(given[number])
        node = prefixes[-1] if prefixes else (key.namespace, b"")
        return InsertResult(sum(known) * self.page_size, len(slots), node, state_adopted=False)

    def lock(self, handle: Prefix) -> Prefix:
        self.locks.append(handle)
        return handle

    def unlock(self, receipt: Prefix) -> None:
        self.locks.remove(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        victims = [prefix for prefix in self.pages if not self._is_locked(prefix)]
        self.free_pages += [self.pages.pop(prefix) for prefix in victims]
        return EvictResult({component: len(victims) * self.page_size}, len(victims), refused=0)

    def reset(self) -> None:
        self.locks.clear()
        self.evict(Component.FULL, 0)

    def _is_locked(self, prefix: Prefix) -> bool:
        return any(space == prefix[0] and tokens.startswith(prefix[1]) for space, tokens in self.locks)

    def _prefixes(self, key: Key) -> list[Prefix]:
        ends = range(self.page_size, len(key.tokens) + 1, self.page_size)
        return [(key.namespace, key.tokens[:end].tobytes()) for end in ends]

    def _slots(self, pages: list[int]) -> Slots:
        return (np.array(pages, dtype=np.int64)[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)
