"""The adapters of SGLang's UnifiedRadixCache: from 0.5.13.post1 to 0.5.23, the last with its tree in Python or in Rust.

They only translate, and act around the tree as SGLang's scheduler does: they do not ask for slots that are neither
free nor evictable, they evict before they allocate, and a request without a state inserts nothing.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig, HostConfig, Recency, Topology, WritePolicy
from hicache.engines.interface import require_interface
from hicache.engines.sglang.host import HOST_DEPARTURES, Receipt
from hicache.engines.sglang.imports import import_from
from hicache.engines.sglang.pools import (
    FULL,
    MAMBA,
    SWA,
    SglangPools,
    arriving_slots,
    as_tensor,
    is_small,
    server_options,
)
from hicache.engines.sglang.rust_tree import RustLocks, RustNode, RustTree
from hicache.engines.sglang.storage_tier import SglangStorageVerbs
from hicache.engines.sglang.view import (
    INDEX,
    Ends,
    Locked,
    SglangView,
    count_holding,
    extra_key,
    full_locked_on_host,
    locked_0513,
    locked_0523,
    locked_on_host_0513,
    locked_on_host_0523,
)
from hicache.errors import ConfigurationError
from hicache.testing.adapter import CacheAdapter, Capability, PageBytes
from hicache.testing.snapshot import Snapshot
from hicache.types import EvictResult, Handle, InsertResult, Key, MatchResult, Namespace, Sizes, Slots

DEVICE = frozenset(
    {
        *(Capability.VERBS, Capability.RESET, Capability.PAGED, Capability.NAMESPACES, Capability.BIGRAM),
        *(
            Capability.SWA,
            Capability.MAMBA,
            Capability.BRANCHING,
            Capability.POLICIES,
            Capability.BYTES,
            Capability.CENSUS,
            Capability.SIZES,
        ),
    }
)
"""The capabilities on the device with any core."""

TIERS = frozenset(
    {
        *(Capability.SNAPSHOT, Capability.HOST),
        *(Capability.STORAGE, Capability.STEPPED_STORAGE, Capability.EXTRA_CONFIG),
    }
)
"""The additional capabilities with a tree in Python."""

PARTIAL_LOCKS = frozenset({Capability.EARLY_UNLOCK, Capability.STATELESS_LOCKS})


class SglangAdapter(SglangStorageVerbs, CacheAdapter):
    """What the releases share. `cache`: SGLang's cache.

    `version`: a release with the interface that SGLang must have. `locks_tombstones`: a lock is also counted on a node
    without data, and protects data that the node gets later.
    """

    interface = 2
    slot_axes: ClassVar[Mapping[str, int]] = {"mamba.*": 1}  # SGLang has the states of all layers in one tensor

    version: ClassVar[str]
    locks_tombstones: ClassVar[bool]
    published: ClassVar[CacheConfig | None] = None
    """The configuration of which SGLang's global settings are now."""

    # A node stays as long as it has FULL data, even if it lacks another component.
    departures = frozenset({"EVICT-6"})

    def __init__(self, config: CacheConfig) -> None:
        require_interface("sglang", type(self))
        self.config = config
        if config.host is not None:
            self.departures |= HOST_DEPARTURES
        if MAMBA in config.components:
            self.departures |= {"INS-3"}  # a request without a state inserts nothing
        self.base = import_from("sglang.srt.mem_cache.base_prefix_cache")
        (self._key_type,) = import_from("sglang.srt.mem_cache.radix_cache", "RadixKey")
        self._publish_own()
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

    # Pools.

    def free(self, slots: Slots) -> None:
        self.pools.free(slots)

    def partners(self, slots: Slots) -> Slots:
        return self.pools.partners(slots)

    def release_window(self, slots: Slots) -> None:
        self.pools.allocator.free_swa(as_tensor(slots))

    def free_state(self, slot: int) -> None:
        self.pools.free_lists[MAMBA].free(as_tensor(np.array([slot])))

    def slot_roots(self) -> Mapping[str, object]:
        return self.pools.roots

    def slot_counts(self) -> Mapping[str, int]:
        return self.pools.slot_counts()

    def layers(self, pool: str) -> int:
        return self.pools.layers(pool)

    def slot_bytes(self, pool: str) -> int:
        return self.pools.slot_bytes(pool)

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.pools.write(pool, slots, layer, data)

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        return self.pools.read(pool, slots, layer)

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
        return count_holding(self.root(), component)

    def reset(self) -> None:
        # SGLang's reset clears the tree and leaves it to the caller to free the slots.
        held = self.held_by_tree()
        self.reset_tree()
        self._prompts.clear()
        self.found.clear()
        if self.config.host is not None:
            self.reset_host()
        self.pools.free(held[FULL])
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
        return dataclasses.replace(self._view.snapshot(self.root()), host=host, storage=storage)

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
        if MAMBA in self.config.components and SglangAdapter.published is not self.config:
            self._publish_own()
        return self.cache.match_prefix(self.base.MatchPrefixParams(key=self.key_of(key)))

    def _publish_own(self) -> None:
        self.publish()
        SglangAdapter.published = self.config

    def _evict(self, full: int = 0, swa: int = 0, mamba: int = 0) -> dict[str, int]:
        done = self.cache.evict(self.base.EvictParams(num_tokens=full, swa_num_tokens=swa, mamba_num=mamba))
        freed = {FULL: done.num_tokens_evicted, SWA: done.swa_num_tokens_evicted, MAMBA: done.mamba_num_evicted}
        return {name: count for name, count in freed.items() if name in self.config.components}

    def key_of(self, key: Key) -> Any:
        return self._key_type(array("q", key.tokens.tolist()), **self.key_options(key.namespace))

    def _open(self) -> tuple[Any, Any]:
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
        return self.cache_type()(params), params

    def cache_type(self) -> Any:
        """The class of SGLang's cache."""
        return import_from("sglang.srt.mem_cache.unified_radix_cache", "UnifiedRadixCache")[0]


def chunk_size(config: CacheConfig) -> int:
    """The distance in tokens of the states that a prefill keeps: at least a page."""
    return max(config.mamba_chunk_size or 1, config.page_size)


class Sglang0513(SglangAdapter):
    """SGLang 0.5.13.post1. Each class below it says what its release changed."""

    version = "0.5.13.post1"
    capabilities = DEVICE | TIERS
    locks_tombstones = False
    swa_options: ClassVar[Mapping[str, Any]] = {"enable_kvcache_transpose": False}
    copying: ClassVar[Sequence[str]] = ("memory_pool_host",)

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        host = config.host
        if host is not None and host.write_policy is WritePolicy.WRITE_BACK and is_small(config, host):
            self.departures |= self.departures_of_a_small_host

    departures_of_a_small_host: ClassVar[frozenset[str]] = frozenset({"EVICT-7"})
    """It opens no such host tier, and waits for host slots for evicted nodes."""

    def publish(self) -> None:
        (set_arguments,) = import_from("sglang.srt.server_args", "set_global_server_args_for_scheduler")
        (server_arguments,) = import_from("sglang.srt.server_args", "ServerArgs")
        arguments = server_arguments.__new__(server_arguments)
        arguments._mamba_cache_chunk_size = chunk_size(self.config)  # noqa: SLF001 - SGLang's own tests set it as well
        set_arguments(arguments)

    def open_pools(self) -> SglangPools:
        return SglangPools(self.config, swa_options=self.swa_options)

    def component_type(self) -> Any:
        return import_from("sglang.srt.mem_cache.unified_cache_components", "ComponentType")[0]

    def prefix_slots(self, found: Any) -> Slots:
        return np.array(found.device_indices.numpy(), dtype=np.int64)

    def held_prefix(self, key: Key, found: Any) -> int:
        return self.held_now(key)

    def insert_options(self, window_start: int) -> dict[str, Any]:
        return {"swa_evicted_seqlen": window_start}

    def host_modules(self) -> Sequence[str]:
        return [f"sglang.srt.mem_cache.{name}" for name in self.copying]

    def node_of(self, handle: Handle) -> Any:
        return handle

    def ongoing_writes(self) -> Iterator[tuple[Handle, Any, list[Any]]]:
        for handle, params, handles in self.cache.ongoing_write_through.values():
            yield handle, params, [self.node_of(one) for one in handles]

    def is_arriving(self, component: str, slots: Any) -> bool:
        return True  # a node is copied at once, with all its components

    def locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_0513(self.cache.root_node, self.node_of(receipt.node), receipt.params)

    def host_locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        root, node = self.cache.root_node, self.node_of(receipt.node)
        yield from full_locked_on_host(root, node, counts_empty=self.locks_empty_on_host())
        yield from locked_on_host_0513(root, node, receipt.params)

    def locks_empty_on_host(self) -> bool:
        """Whether a host lock of FULL is also counted on a node without data on the host."""
        return False

    def key_options(self, namespace: Namespace) -> dict[str, Any]:
        return {"extra_key": extra_key(dataclasses.asdict(namespace))}

    def clocks(self) -> Sequence[str]:
        return (
            "sglang.srt.mem_cache.unified_radix_cache",
            "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller",
        )

    def set_ranks(self, ranks: Topology) -> None:
        controller = import_from("sglang.srt.managers.cache_controller")
        controller.is_dp_attention_enabled = lambda: False
        controller.get_tensor_model_parallel_rank = lambda: ranks.tp_rank
        controller.get_tensor_model_parallel_world_size = lambda: ranks.tp_size
        controller.get_pipeline_model_parallel_rank = lambda: ranks.pp_rank
        controller.get_pipeline_model_parallel_world_size = lambda: ranks.pp_size
        controller.HiCacheController.get_attn_cp_rank_and_size = lambda _: (ranks.cp_rank, ranks.cp_size)

    def request_named(self, name: str) -> Handle:
        return name

    def begin_prefetch(self, request: Handle, anchor: Any, key: Key, start: int) -> None:
        before = anchor.get_prefix_hash_values(anchor.parent) if self.cache.hicache_storage_pass_prefix_keys else None
        tokens = array("q", key.tokens[start:].tolist())
        self.cache.prefetch_from_storage(request, anchor, tokens, anchor.get_last_hash_value(), before)

    def can_anchor(self, anchor: Any) -> bool:
        return bool(anchor.backuped or anchor is self.cache.root_node)

    def hashes_of(self, key: Any) -> Sequence[str]:
        (compute,) = import_from("sglang.srt.mem_cache.utils", "compute_node_hash_values")
        hashes: Sequence[str] = compute(SimpleNamespace(key=key, parent=None), self.config.page_size)
        return hashes

    def transfers_of_thread(self, operation: Any) -> Iterable[Any]:
        return ()  # they are freed with the request

    def snapshot(self) -> Snapshot:
        return self.show()


class Sglang0513Below(Sglang0513):
    """SGLang 0.5.13.post1 over HicacheStorage as a server has it."""

    is_like_builtin = False


class Sglang0514(Sglang0513):
    """SGLang 0.5.14."""

    version = "0.5.14"
    copying: ClassVar[Sequence[str]] = ("memory_pool_host", "pool_host.base", "pool_host.common")


class Sglang0515(Sglang0514):
    """SGLang 0.5.15.post1."""

    version = "0.5.15.post1"
    swa_options: ClassVar[Mapping[str, Any]] = {}


class Sglang0516(Sglang0515):
    """SGLang 0.5.16: settings and ranks are in a context of the process."""

    version = "0.5.16"
    copying: ClassVar[Sequence[str]] = ("memory_pool_host", "pool_host.base", "pool_host.common", "pool_host.mha")

    def __init__(self, config: CacheConfig) -> None:
        if config.bigram and MAMBA in config.components:
            raise ConfigurationError(f"SGLang {self.version} supports no bigram keys together with MAMBA")
        super().__init__(config)

    def publish(self) -> None:
        context = import_from("sglang.srt.runtime_context").get_context()
        options = {} if self.config.host is None else server_options(self.config, self.config.host)
        most = self.config.mamba_max_states_per_path
        limit = {} if most is None else {"mamba_max_states_per_path": most}
        context.override_server_args(_mamba_cache_chunk_size=chunk_size(self.config), **options, **limit).install()

    def set_ranks(self, ranks: Topology) -> None:
        controller = import_from("sglang.srt.managers.cache_controller")
        controller.is_dp_attention_enabled = lambda: False
        controller.get_parallel = lambda: SimpleNamespace(**parallel_fields(ranks))
        controller.HiCacheController.get_attn_cp_rank_and_size = lambda _: (ranks.cp_rank, ranks.cp_size)


class Sglang0517(Sglang0516):
    """SGLang 0.5.17: the tree is an object of its own, and handles are numbers of nodes."""

    version = "0.5.17"

    def component_type(self) -> Any:
        return import_from("sglang.srt.mem_cache.unified_cache.component_type", "ComponentType")[0]

    def held_prefix(self, key: Key, found: Any) -> int:
        return int(found.full_kv_hit_length)

    def node_of(self, handle: Handle) -> Any:
        return self.cache.tree_core.node_by_id(handle)

    def locks_empty_on_host(self) -> bool:
        return bool(self.cache.tree_core.is_write_back)

    def begin_prefetch(self, request: Handle, anchor: Handle, key: Key, start: int) -> None:
        cache = self.cache
        before = cache.get_prefix_hash_values(anchor) if cache.hicache_storage_pass_prefix_keys else None
        tokens, last = array("q", key.tokens[start:].tolist()), cache.get_last_hash_value(anchor)
        cache.prefetch_from_storage(request, anchor, tokens, last, before, **self.prefetch_options(key, start))

    def prefetch_options(self, key: Key, start: int) -> dict[str, Any]:
        """Further options of a prefetch of a key from element `start` on."""
        return {}

    def can_anchor(self, anchor: Handle) -> bool:
        return bool(self.cache.is_backuped(anchor) or self.cache.is_root(anchor))


class Sglang0518(Sglang0517):
    """SGLang 0.5.18: a key has its salt beside its other namespace, and data that a node gets later is copied alone."""

    version = "0.5.18"
    copying: ClassVar[Sequence[str]] = ("pool_host.base", "pool_host.common", "pool_host.mha", "pool_host.mamba")

    def key_options(self, namespace: Namespace) -> dict[str, Any]:
        others = {"lora": namespace.lora, "tenant": namespace.tenant}
        return {"extra_key": extra_key(others), "cache_salt": namespace.salt}

    def open_host(self, host: HostConfig, params: Any) -> None:
        super().open_host(host, params)
        self._writes: dict[int, Any] = {}
        controller = self.cache.cache_controller
        start = controller.start_writing

        def start_noted() -> None:
            # SGLang forgets what a write copies when it starts it.
            self._writes.update((number, one) for one in controller.write_queue for number in one.node_ids)
            start()

        controller.start_writing = start_noted

    def is_arriving(self, component: str, slots: Any) -> bool:
        under_way = [self._writes[number] for number in self.cache.ongoing_write_through]
        return bool(arriving_slots(under_way, component, slots).all())


class Sglang0519(Sglang0518):
    """SGLang 0.5.19: a prefetch gets its namespace, and its thread frees the slots that it got."""

    version = "0.5.19"

    def prefetch_options(self, key: Key, start: int) -> dict[str, Any]:
        before = array("q", key.tokens[:start].tolist())
        return {"matched_prefix_tokens": before, **self.key_options(key.namespace)}

    def transfers_of_thread(self, operation: Any) -> Iterable[Any]:
        return () if operation.pool_transfers_done else operation.pool_transfers or ()


class Sglang0520(Sglang0519):
    """SGLang 0.5.20: a lock is also counted on nodes without data, and a request has a handle."""

    version = "0.5.20"
    locks_tombstones = True

    def locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_0523(self.cache.root_node, self.node_of(receipt.node), self.ends(receipt.params))

    def host_locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        root, node = self.cache.root_node, self.node_of(receipt.node)
        yield from full_locked_on_host(root, node, counts_empty=self.locks_empty_on_host())
        yield from locked_on_host_0523(root, node, self.host_ends(receipt.params))

    def ends(self, params: Any) -> Ends:
        """The marks at which the locks of a receipt end on the device."""
        return {INDEX[SWA]: params.swa_uuid_for_lock}

    def host_ends(self, params: Any) -> Ends:
        """The same on the host."""
        return {INDEX[SWA]: params.swa_uuid_for_host_lock}

    def request_named(self, name: str) -> Handle:
        return self.base.CacheRequestHandle(name, 0)

    def hashes_of(self, key: Any) -> Sequence[str]:
        (compute,) = import_from("sglang.srt.mem_cache.utils", "get_storage_hash_str")
        hashes: Sequence[str] = compute(key, None, page_size=self.config.page_size)
        return hashes


class Sglang0521(Sglang0520):
    """SGLang 0.5.21: writes are collected until a step, and each component has marks of its own.

    `core`: the implementation of the tree behind the cache: SGLang's name for it, and its class.
    """

    version = "0.5.21"
    core: ClassVar[tuple[str, str]] = ("python", "UnifiedTreeCore")

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        # When SGLang cannot load the requested core, it silently uses the other one.
        opened = type(self.cache.tree_core).__name__
        if opened != self.core[1]:
            raise ImportError(f"{type(self).__name__} needs {self.core[1]}, but SGLang opened {opened}")

    def open_options(self) -> dict[str, Any]:
        return {"tree_core_backend": self.core[0]}

    def set_ranks(self, ranks: Topology) -> None:
        (parallel,) = import_from("sglang.srt.runtime_context", "get_parallel")
        parallel().override_permanently(**parallel_fields(ranks))
        controller = import_from("sglang.srt.managers.cache_controller")
        controller.is_dp_attention_enabled = lambda: False
        controller.HiCacheController.get_attn_cp_rank_and_size = lambda _: (ranks.cp_rank, ranks.cp_size)

    def insert_options(self, window_start: int) -> dict[str, Any]:
        return {"component_evicted_seqlens": {self.component_type().SWA: window_start}}

    def is_arriving(self, component: str, slots: Any) -> bool:
        return bool(arriving_slots(self.cache.cache_controller.write_queue, component, slots).all())

    def ends(self, params: Any) -> Ends:
        ends: Ends = params.component_lock_uuids
        return ends

    def host_ends(self, params: Any) -> Ends:
        ends: Ends = params.component_host_lock_uuids
        return ends


class Sglang0522(Sglang0521):
    """SGLang 0.5.22: slots are read from the path to a node, and a host lock of FULL has a mark."""

    version = "0.5.22"

    def prefix_slots(self, found: Any) -> Slots:
        slots = np.array(self.cache.path_device_indices(found.last_device_node).numpy(), dtype=np.int64)
        assert len(slots) == found.device_prefix_len, f"a path of {len(slots)} slots for {found.device_prefix_len}"
        return slots

    def host_locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_on_host_0523(
            self.cache.root_node, self.node_of(receipt.node), receipt.params.component_host_lock_uuids
        )


class Sglang0523(Sglang0522):
    """SGLang 0.5.23."""

    version = "0.5.23"
    capabilities = DEVICE | TIERS | PARTIAL_LOCKS
    recencies = (Recency.USED,)
    state_options = frozenset({"mamba_max_states_per_path"})

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        if config.host is not None and config.host.write_policy is WritePolicy.WRITE_BACK:
            self.departures |= {"EVICT-5"}  # a leaf takes the window above it to the host, without its FULL data

    departures_of_a_small_host = frozenset()

    def lock_without_state(self, handle: Handle) -> Receipt:
        states = (self.component_type().MAMBA,)
        return Receipt(handle, self.cache.inc_lock_ref(handle, states).to_dec_params())

    def unlock_window(self, receipt: Receipt) -> Receipt:
        if receipt.has_window:
            self.cache.release_swa(self.base.TreeLock(receipt.node, receipt.params))
        return Receipt(receipt.node, receipt.params, has_window=False)

    def unlock(self, receipt: Receipt) -> None:
        self.cache.dec_lock_ref(receipt.node, receipt.params, skip_swa=not receipt.has_window)

    def clocks(self) -> Sequence[str]:
        return ("sglang.srt.utils.poll_timer", "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller")


class Sglang0523Python(Sglang0523):
    """SGLang 0.5.23 with its tree in Python."""


class Sglang0523Below(Sglang0523Python):
    """SGLang 0.5.23 over HicacheStorage as a server has it."""

    is_like_builtin = False


class Sglang0523Rust(Sglang0523):
    """SGLang 0.5.23 with its tree in Rust."""

    core = ("rust", "RustUnifiedTreeCore")

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        self._kinds = {
            name: self.component_type()[name.upper()] for name in (FULL, SWA, MAMBA) if name in config.components
        }
        self._locks = RustLocks(self.cache.tree_core, self._kinds, config.sliding_window_size)
        self._snapshotted: RustTree | None = None

    def tree(self) -> RustTree:
        """The tree now; while a snapshot is made, the one that it shows."""
        return self._snapshotted or RustTree(self.cache.tree_core, self._kinds, self._locks)

    def show(self) -> Snapshot:
        self._snapshotted = self.tree()
        try:
            return super().show()
        finally:
            self._snapshotted = None

    def root(self) -> RustNode:
        return self.tree().root

    def node_of(self, handle: Handle) -> RustNode:
        return self.tree().nodes[handle]

    def held_now(self, key: Key) -> int:
        return int(self.cache.tree_core.match_full_device_prefix(self.key_of(key))[0])

    def locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        tree = self.tree()
        for lock in self._locks.locks_of(receipt.params, on_host=False):
            for node in tree.covered(lock):
                data = node.component_data[INDEX[lock.component]]
                if data.lock_ref and data.value is not None:
                    yield lock.component, node

    def host_locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        tree = self.tree()
        for lock in self._locks.locks_of(receipt.params, on_host=True):
            for node in tree.covered(lock):
                if node.component_data[INDEX[lock.component]].host_lock_ref:
                    yield lock.component, node


def parallel_fields(ranks: Topology) -> dict[str, int]:
    """The ranks as SGLang's context names them."""
    groups = ("tp", "attn_tp", "moe_tp")
    numbers = {f"{group}_rank": ranks.tp_rank for group in groups} | {
        f"{group}_size": ranks.tp_size for group in groups
    }
    return {**numbers, "pp_rank": ranks.pp_rank, "pp_size": ranks.pp_size, "attn_dcp_rank": 0}
