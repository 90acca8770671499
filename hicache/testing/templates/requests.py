"""An adapter by requests: the one class between the suites of hicache and a cache.

It runs unchanged, over a small cache of hashed blocks that stands in for yours. Replace the lines after each comment
YOUR CACHE by calls to your cache, and run the suites after each change. Then delete the import of hicache's BlockCache.

An adapter only translates. It must not correct the cache: where the cache deviates, the suites have to see it.
The guide is docs/guide/adapters.md in the repository of hicache.
"""

from __future__ import annotations

from typing import ClassVar

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.caches.block_cache import BlockCache, BlockCacheConfig, Group
from hicache.types import Component, Handle, Key, Slots, Tokens


class MyAdapter(CacheAdapter):
    """FULL alone, in blocks of page_size tokens. A request of the cache is its own handle."""

    # The version of the interface that this file was written for.
    interface = 2
    # The design of the cache: "blocks", "offload" or "tree". Clauses that do not apply to a design are not tested.
    profile = "blocks"
    # What the cache supports. Tests that need anything else are skipped, with the reason. The end of this class lists
    # what to declare next.
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.REQUESTS})

    def __init__(self, config: CacheConfig) -> None:
        # Each test opens a cache of its own. Refuse what the cache cannot serve.
        if config.components != ("full",):
            raise ConfigurationError(f"{config.name}: expected FULL alone")
        # YOUR CACHE: open it here, empty. The capacity is in tokens; block 0 is a null block and comes on top.
        blocks = config.capacity_tokens["full"] // config.page_size + 1
        self.cache = BlockCache(BlockCacheConfig(blocks, (Group(Component.FULL, config.page_size),)))

    def lookup(self, key: Key) -> int:
        # YOUR CACHE: how many tokens of the prompt are cached. It takes and frees nothing.
        return self.cache.match(key.tokens, key.namespace, limit=len(key.tokens))

    def admit(self, key: Key) -> Admission | None:
        # YOUR CACHE: find the cached prefix, protect it, and allocate the rest. None, with no effect, when it is short.
        request = self.cache.admit(key.tokens, key.namespace)
        if request is None:
            return None
        return Admission(
            request=request,
            table=self._table(request),
            cached_tokens=request.cached_tokens,
            state=None,
            loading=False,
        )

    def extend(self, request: Handle, tokens: Tokens) -> Slots | None:
        # YOUR CACHE: append tokens, and slots for them. None, with no effect, when it is short.
        return self._table(request) if self.cache.extend(request, tokens) else None

    def checkpoint(self, request: Handle, computed_tokens: int) -> Slots:
        # YOUR CACHE: the first `computed_tokens` tokens are computed; the whole blocks among them can be cached.
        self.cache.checkpoint(request, computed_tokens)
        return self._table(request)

    def finish(self, request: Handle) -> None:
        # YOUR CACHE: the request ends, and all its tokens are computed.
        self.cache.finish(request)

    def abort(self, request: Handle) -> None:
        # YOUR CACHE: the request ends now.
        self.cache.abort(request)

    def _table(self, request: Handle) -> Slots:
        # YOUR CACHE: the slot of each token, in whole blocks: the block's number times its tokens, plus the offset.
        return self.cache.slots(request, 0)

    # REQUESTS alone runs the tests of requests, and the black-box machine: it runs requests in random order, and finds
    # a slot that two requests have, and a hit on what was never computed or was handed out again.
    #
    # DECLARE NEXT: one capability, its methods, one run. In this order the first ones find the most defects.
    #
    # PAGED       blocks above 1 token     blocks of 3, 16 and 64 tokens: __init__ takes any config.page_size
    # NAMESPACES  key.namespace            that equal tokens in two namespaces share nothing
    # TABLES,     tables(),                the owner of every slot, structure and references, after every verb: with the
    # SNAPSHOT    block_snapshot()         profile "blocks" both together
    # SIZES       sizes()                  the size counters, recomputed after every verb
    # BYTES       layers, slot_bytes,      the bytes of every cached token, after every verb; language models that
    #             write, read              answer from the cache. With SNAPSHOT and SIZES: the machine that compares the
    #                                      whole cache with a model of it after each step of its random requests
    # COLLISIONS  colliding()              that two blocks with equal hashes are distinguished
    # RESET       reset()                  what a reset frees, and that nothing from before it has an effect
    # VERBS       allocate, free, match,   prefixes one by one, if the cache lets its caller do that
    #             insert, lock, unlock, evict
    #
    # PAGED and NAMESPACES need no more than their names here: the stand-in has both. All others are in
    # docs/reference/capabilities.md: SWA, MAMBA, INDEXER, HOST, STORAGE, RANKS and more.
