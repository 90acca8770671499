"""An adapter by verbs: the one class between the suites of hicache and a cache.

It runs unchanged, over a small cache that stands in for yours. Replace the lines after each comment YOUR CACHE by
calls to your cache, and run the suites after each change. Then delete the import of PrefixDictionary.

An adapter only translates. It must not correct the cache: where the cache deviates, the suites have to see it.
The guide is docs/guide/adapters.md in the repository of hicache.
"""

from __future__ import annotations

from typing import ClassVar

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.caches.dictionary import PrefixDictionary
from hicache.types import EvictResult, Handle, InsertResult, Key, MatchResult, Slots


class MyAdapter(CacheAdapter):
    """FULL alone, in pages of one token. A handle is a prefix; a receipt is what `pin` returned."""

    # The version of the interface that this file was written for.
    interface = 2
    # What the cache supports. Tests that need anything else are skipped, with the reason. The end of this class lists
    # what to declare next.
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.VERBS})

    def __init__(self, config: CacheConfig) -> None:
        # Each test opens a cache of its own. Refuse what the cache cannot serve.
        if config.components != ("full",) or config.page_size != 1:
            raise ConfigurationError(f"{config.name}: expected FULL alone in pages of one token")
        # YOUR CACHE: open it here, empty. The capacity is in tokens, without the padding slot 0.
        self.cache = PrefixDictionary(config.capacity_tokens["full"])

    def allocate(self, tokens: int) -> Slots | None:
        # YOUR CACHE: take slots, and evict as many as are missing. None, with no effect, when it cannot.
        return self.cache.take(tokens)

    def free(self, slots: Slots) -> None:
        # YOUR CACHE: take back slots that the tree does not own.
        self.cache.give(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        # YOUR CACHE: find the longest cached prefix. `prefix` is the handle: your name of the node where it ends.
        prefix, slots = self.cache.find(key.tokens)
        return MatchResult(
            device_indices=slots,
            device_anchor=prefix,
            best_match=prefix,
            host_hit_length=0,
            component_host_hit_lengths={},
            branching_seqlen=None,
        )

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        # YOUR CACHE: insert the key with these slots. The tree owns the first `shared` of them already.
        # Of the others it keeps those that are new to it, and frees the duplicates.
        known = self.cache.keep(key.tokens, slots)
        self.cache.give(slots[shared:known])
        return InsertResult(
            prefix_length=known, accepted_length=len(slots), node=key.tokens.tobytes(), state_adopted=False
        )

    def lock(self, handle: Handle) -> Handle:
        # YOUR CACHE: protect the path from the root to this node from eviction. Return what `unlock` needs.
        return self.cache.pin(handle)

    def unlock(self, receipt: Handle) -> None:
        # YOUR CACHE: release this lock.
        self.cache.unpin(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        # YOUR CACHE: evict `tokens` slots or more, or all unlocked slots. Return the number that it freed.
        dropped = self.cache.drop(tokens)
        return EvictResult(freed={component: dropped}, victims=dropped, refused=0)

    # VERBS alone runs the tests of single verbs, and the black-box machine: it calls the verbs in random order, and
    # finds a slot that is freed while it is read, handed out twice, or matched after it was handed out again.
    #
    # DECLARE NEXT: one capability, its methods, one run. In this order the first ones find the most defects.
    #
    # RESET       reset()                  what a reset frees, and that nothing from before it has an effect
    # PAGED       pages above 1            pages of 3, 16 and 64 tokens: __init__ takes any config.page_size
    # NAMESPACES  key.namespace            that equal tokens in two namespaces share nothing
    # SNAPSHOT    snapshot()               the owner of every slot, structure and locks, after every verb
    # SIZES       sizes()                  the size counters, recomputed after every verb
    # BYTES       layers, slot_bytes,      the bytes of every cached token, after every verb; language models that
    #             write, read              answer from the cache. With SNAPSHOT and SIZES: the machine that compares the
    #                                      whole cache with a model of it after each of its random verbs
    # REFUSALS    errors on misuse         a stale receipt or handle, a lock released twice, a slot freed twice
    # REQUESTS    lookup, admit, extend,   requests over the cache: chunks, aborts, what an admission reserves
    #             checkpoint, finish, abort
    #
    # All others are in docs/reference/capabilities.md: SWA, MAMBA, INDEXER, POLICIES, HOST, STORAGE, RANKS and more.
