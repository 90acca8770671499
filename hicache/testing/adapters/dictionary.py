"""DictionaryAdapter: the smallest adapter, for a cache that is a dictionary; a template for other adapters."""

from __future__ import annotations

from typing import Any

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.prefix_dictionary import PrefixDictionary
from hicache.types import EvictResult, Handle, InsertResult, Key, MatchResult, Slots


class DictionaryAdapter(CacheAdapter):
    """Supports what needs no capability: pages of one token, one namespace, FULL alone, LRU. A handle is a prefix."""

    def __init__(self, config: CacheConfig) -> None:
        if config.components != ("full",) or config.page_size != 1:
            raise ConfigurationError(f"no cache of {config.components} in pages of {config.page_size} tokens")
        self.cache = PrefixDictionary(config.capacity_tokens["full"])

    def allocate(self, tokens: int) -> Slots | None:
        return self.cache.take(tokens)

    def free(self, slots: Slots) -> None:
        self.cache.give(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        prefix, slots = self.cache.find(key.tokens)
        return MatchResult(slots, prefix, prefix, 0, {}, None)

    def insert(self, key: Key, slots: Slots, *, shared: int, **_: Any) -> InsertResult:
        known = self.cache.keep(key.tokens, slots)
        self.cache.give(slots[shared:known])
        return InsertResult(known, len(slots), key.tokens.tobytes(), state_adopted=False)

    def lock(self, handle: Handle) -> Handle:
        return self.cache.pin(handle)

    def unlock(self, receipt: Handle) -> None:
        self.cache.unpin(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        dropped = self.cache.drop(tokens)
        return EvictResult({component: dropped}, dropped, refused=0)

    def reset(self) -> None:
        self.cache.clear()
