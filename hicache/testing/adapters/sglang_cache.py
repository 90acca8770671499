"""SglangAdapter: SGLang's UnifiedRadixCache under the suites, as far as its releases agree. It only translates.

It acts around the tree as SGLang's scheduler does: it does not ask for slots that are neither free nor evictable, it
evicts before it allocates, and a request without a state inserts nothing.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from array import array
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.adapters.sglang_host import HOST_DEPARTURES, Receipt
from hicache.testing.adapters.sglang_import import import_from, prepare_sglang
from hicache.testing.adapters.sglang_pool_verbs import SglangPoolVerbs
from hicache.testing.adapters.sglang_pools import FULL, MAMBA, SWA, SglangPools, as_tensor
from hicache.testing.adapters.sglang_storage import SglangStorageVerbs
from hicache.testing.adapters.sglang_view import SglangView, count_holding
from hicache.testing.snapshot import Snapshot
from hicache.types import EvictResult, Handle, InsertResult, Key, MatchResult, Namespace, Sizes, Slots


class SglangAdapter(SglangPoolVerbs, SglangStorageVerbs, CacheAdapter):
    """What both releases share. `cache`: SGLang's cache.

    `version`: the release that must be installed. `locks_tombstones`: a lock is also counted on a node without data,
    and protects data that the node gets later.
    """

    version: ClassVar[str]
    locks_tombstones: ClassVar[bool]
    # A node stays as long as it has FULL data, even if it lacks another component.
    departures = frozenset({"EVICT-6"})

    def __init__(self, config: CacheConfig) -> None:
        installed = prepare_sglang()
        if installed != self.version:
            raise ImportError(f"{type(self).__name__} needs sglang {self.version}, but {installed} is installed")
        self.config = config
        if config.host is not None:
            self.departures |= HOST_DEPARTURES
        if MAMBA in config.components:
            self.departures |= {"INS-3"}  # a request without a state inserts nothing
        self.base = import_from("sglang.srt.mem_cache.base_prefix_cache")
        (self._key_type,) = import_from("sglang.srt.mem_cache.radix_cache", "RadixKey")
        self.publish()
        self.pools = self.open_pools()
        self.cache, params = self._open()
        if config.host is not None:
            self.open_tiers(config.host, params)
        self._view = SglangView(config, self.pools, counts_empty=not self.locks_tombstones)
        self._prompts: dict[Handle, Key] = {}
        self.found: dict[Handle, Any] = {}

    # Differences between the releases.

    @abstractmethod
    def publish(self) -> None:
        """Set the global settings of SGLang that this cache needs."""

    @abstractmethod
    def open_pools(self) -> SglangPools:
        """The pools of this release."""

    @abstractmethod
    def component_type(self) -> Any:
        """SGLang's enumeration of components."""

    @abstractmethod
    def prefix_slots(self, found: Any) -> Slots:
        """The FULL slots up to the device anchor of a match."""

    @abstractmethod
    def held_prefix(self, key: Key, found: Any) -> int:
        """The number of a key's elements whose FULL data the tree holds. `found`: the result of its match."""

    @abstractmethod
    def insert_options(self, window_start: int) -> dict[str, Any]:
        """The option of an insert for the start of the window."""

    @abstractmethod
    def key_options(self, namespace: Namespace) -> dict[str, Any]:
        """The options of a key for its namespace."""

    def open_options(self) -> dict[str, Any]:
        """Further options to open the cache with."""
        return {}

    # Scheduler.

    def allocate(self, tokens: int) -> Slots | None:
        sides = {name: sizes for name, sizes in self.sizes().items() if name != MAMBA}
        if any(sizes.free + sizes.evictable < tokens for sizes in sides.values()):
            return None
        missing = {name: max(0, tokens - sizes.free) for name, sizes in sides.items()}
        if any(missing.values()):
            self._evict(**missing)
        return self.pools.allocate(tokens)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        # SGLang counts hits when a prompt is inserted.
        found = self.ask_match(key)
        on_device = len(self.prefix_slots(found))
        anchor = self._record_prompt(found.last_device_node, key, on_device)
        best = anchor
        if found.best_match_node != anchor:
            best = self._record_prompt(found.best_match_node, key, on_device + found.host_hit_length)
        self.found[best] = found
        below = {SWA: found.swa_host_hit_length, MAMBA: found.mamba_host_hit_length}
        return MatchResult(
            device_indices=self.prefix_slots(found),
            device_anchor=anchor,
            best_match=best,
            host_hit_length=found.host_hit_length,
            component_host_hit_lengths={name: hit for name, hit in below.items() if name in self.config.components},
            branching_seqlen=found.mamba_branching_seqlen,
        )

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        if MAMBA in self.config.components and state is None:
            return self._insert_nothing(key, slots[shared:])
        page = self.config.page_size
        known = self.held_now(key) if self.config.host is not None else len(slots)
        result = self.cache.insert(
            self.base.InsertParams(
                key=self.key_of(key),
                value=as_tensor(slots),
                mamba_value=None if state is None else as_tensor(np.array([state])),
                prev_prefix_len=shared,
                priority=priority,
                **self.insert_options(-(-window_start // page) * page),
            )
        )
        found = self.ask_match(key)
        accepted = len(self.prefix_slots(found))
        adopted = state is not None and not result.mamba_exist
        node = self._record_prompt(found.last_device_node, key, accepted)
        # SGLang reports data that was only on the host, for which it takes the request's slots, as present before.
        return InsertResult(min(result.prefix_len, known), accepted, node, adopted)

    def lock(self, handle: Handle) -> Receipt:
        return Receipt(handle, self.cache.inc_lock_ref(handle).to_dec_params())

    def unlock(self, receipt: Receipt) -> None:
        self.cache.dec_lock_ref(receipt.node, receipt.params)

    def evict(self, component: str, tokens: int) -> EvictResult:
        before = self.count_victims(component)
        freed = self._evict(**{component: tokens})
        victims = before - self.count_victims(component)
        return EvictResult(freed, victims, self._refused(component, tokens - freed[component]))

    def count_victims(self, component: str) -> int:
        """The number of nodes that hold a component on the device, locked ones included."""
        return count_holding(self.cache.root_node, component)

    def reset(self) -> None:
        # SGLang's reset clears the tree and leaves it to the caller to free the slots.
        held = self.held_by_tree()
        self.reset_tree()
        self._prompts.clear()
        self.found.clear()
        if self.config.host is not None:
            self.reset_host()
        self.pools.allocator.free(as_tensor(held[FULL]))
        if MAMBA in held:
            self.pools.free_lists[MAMBA].free(as_tensor(held[MAMBA]))

    def held_now(self, key: Key) -> int:
        """The number of a key's elements whose FULL data is on the device, read from the nodes without a match."""
        page, node, held = self.config.page_size, self.cache.root_node, 0
        rest, _ = self.key_of(key).maybe_to_bigram_view(self.config.bigram)
        rest = rest.page_aligned(page)
        while len(rest) and (child := node.children.get(rest.child_key(page))) is not None and not child.evicted:
            common = child.key.match(rest, page_size=page)
            held += common
            if common < len(child.key):
                break
            node, rest = child, rest[common:]
        return held

    def held_by_tree(self) -> Mapping[str, Slots]:
        """The FULL slots and the states that the tree holds, in any order."""
        held = {FULL: self.cache.all_values_flatten()}
        if MAMBA in self.config.components:
            held[MAMBA] = self.cache.all_mamba_values_flatten()
        return {name: np.array(slots.numpy(), dtype=np.int64) for name, slots in held.items()}

    def allocate_state(self) -> int | None:
        allocator = self.pools.free_lists[MAMBA]
        taken = allocator.alloc(1)
        if taken is None:
            self._evict(**{MAMBA: 1})
            taken = allocator.alloc(1)
        return None if taken is None else int(taken[0])

    def fork_state(self, handle: Handle) -> int | None:
        receipt = self.lock(handle)
        sizes = self._sizes(MAMBA)
        # SGLang copies a state when it matches a request, and asserts that there is a slot for the copy.
        request = SimpleNamespace(mamba_pool_idx=None, mamba_cow_src_index=None, session=None, holds_mamba=False)
        request.kv = request  # 0.5.23 reads the fields from here
        if sizes.free + sizes.evictable:
            key = self.key_of(self._prompts[handle])
            self.cache.match_prefix(self.base.MatchPrefixParams(key=key, cow_mamba=True, req=request))
        self.unlock(receipt)
        if request.mamba_pool_idx is None:
            return None
        slot = int(request.mamba_pool_idx)
        self.pools.copy_state(np.array(request.mamba_cow_src_index.numpy()), np.array([slot]))
        return slot

    def sizes(self) -> Mapping[str, Sizes]:
        return {name: self._sizes(name) for name in self.config.components}

    def show(self) -> Snapshot:
        """The snapshot of a cache whose nodes are visible."""
        storage = None if self.config.storage is None else self.storage_view()
        host = None if self.config.host is None else self.host_view()
        return dataclasses.replace(self._view.snapshot(self.cache.root_node), host=host, storage=storage)

    def sanity_check(self) -> None:
        # SGLang's check reports a node that is locked on the host as lost.
        if self.config.host is None or not self.has_host_locks():
            self.cache.sanity_check()

    def _sizes(self, name: str) -> Sizes:
        evictable = getattr(self.cache, f"{name}_evictable_size")()
        protected = getattr(self.cache, f"{name}_protected_size")()
        return Sizes(evictable, protected, self.pools.free_lists[name].available_size())

    def _refused(self, component: str, missing: int) -> int:
        """1 if data stayed for lack of host slots, else 0: SGLang reports only that less was evicted."""
        is_copied_first = self.config.host is not None and self.config.host.write_policy is WritePolicy.WRITE_BACK
        return int(is_copied_first and missing > 0 and self.sizes()[component].evictable > 0)

    def _insert_nothing(self, key: Key, fresh: Slots) -> InsertResult:
        """Free the slots of a request that ends without a state."""
        if len(fresh):
            self.free(fresh)
        found = self.ask_match(key)
        accepted = len(self.prefix_slots(found))
        node = self._record_prompt(found.last_device_node, key, accepted)
        return InsertResult(self.held_prefix(key, found), accepted, node, state_adopted=False)

    def _record_prompt(self, handle: Handle, key: Key, elements: int) -> Handle:
        """Record the prompt of a node, as SGLang finds a state by prompt and not by node."""
        tokens = key.tokens[: elements + self.config.bigram] if elements else key.tokens[:0]
        self._prompts[handle] = Key(tokens, key.namespace)
        return handle

    def ask_match(self, key: Key) -> Any:
        if MAMBA in self.config.components:
            self.publish()
        return self.cache.match_prefix(self.base.MatchPrefixParams(key=self.key_of(key)))

    def _evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> dict[str, int]:
        done = self.cache.evict(self.base.EvictParams(num_tokens=full, swa_num_tokens=swa, mamba_num=mamba))
        freed = {FULL: done.num_tokens_evicted, SWA: done.swa_num_tokens_evicted, MAMBA: done.mamba_num_evicted}
        return {name: count for name, count in freed.items() if name in self.config.components}

    def key_of(self, key: Key) -> Any:
        return self._key_type(array("q", key.tokens.tolist()), **self.key_options(key.namespace))

    def _open(self) -> tuple[Any, Any]:
        (cache_type,) = import_from("sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache")
        (params_type,) = import_from("sglang.srt.mem_cache.cache_init_params", "CacheInitParams")
        kinds, named = self.component_type(), self.config.components
        params = params_type(
            disable=False,
            req_to_token_pool=self.pools.requests,
            token_to_kv_pool_allocator=self.pools.allocator,
            page_size=self.config.page_size,
            is_eagle=self.config.bigram,
            eviction_policy=self.config.policy.value,
            sliding_window_size=self.config.sliding_window_size,
            enable_mamba_extra_buffer=self.config.page_size > 1,
            tree_components=tuple(kinds[name.upper()] for name in (FULL, SWA, MAMBA) if name in named),
            **self.open_options(),
        )
        return cache_type(params), params
