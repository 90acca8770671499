"""The adapters of SGLang's releases: 0.5.13.post1, and 0.5.23 with its tree in Python or in Rust."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig, Topology, WritePolicy
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.adapters.sglang_cache import SglangAdapter
from hicache.testing.adapters.sglang_host import Receipt
from hicache.testing.adapters.sglang_host_pools import arriving_slots, is_small, server_options
from hicache.testing.adapters.sglang_import import import_from
from hicache.testing.adapters.sglang_locks import (
    Locked,
    locked_0513,
    locked_0523,
    locked_on_host_0513,
    locked_on_host_0523,
)
from hicache.testing.adapters.sglang_pools import MAMBA, SglangPools
from hicache.testing.adapters.sglang_view import extra_key
from hicache.testing.snapshot import Snapshot
from hicache.types import Handle, Key, Namespace, Slots

DEVICE = frozenset(
    {
        *(Capability.PAGED, Capability.NAMESPACES, Capability.BIGRAM, Capability.SWA, Capability.MAMBA),
        *(Capability.POLICIES, Capability.BYTES, Capability.SIZES),
    }
)
"""The capabilities on the device with any core."""

TIERS = frozenset({Capability.SNAPSHOT, Capability.HOST, Capability.STORAGE, Capability.STEPPED_STORAGE})
"""The additional capabilities with a tree in Python."""


def chunk_size(config: CacheConfig) -> int:
    """The distance in tokens of the states that a prefill keeps: at least a page."""
    return max(config.mamba_chunk_size or 1, config.page_size)


class Sglang0513(SglangAdapter):
    """SGLang 0.5.13.post1."""

    version = "0.5.13.post1"
    locks_tombstones = False
    capabilities = DEVICE | TIERS

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        host = config.host
        if host is not None and host.write_policy is WritePolicy.WRITE_BACK and is_small(config, host):
            self.departures |= {"EVICT-7"}  # it opens no such host tier, and waits for host slots for evicted nodes

    def publish(self) -> None:
        (set_arguments,) = import_from("sglang.srt.server_args", "set_global_server_args_for_scheduler")
        (server_arguments,) = import_from("sglang.srt.server_args", "ServerArgs")
        arguments = server_arguments.__new__(server_arguments)
        arguments._mamba_cache_chunk_size = chunk_size(self.config)  # noqa: SLF001 - SGLang's own tests set it as well
        set_arguments(arguments)

    def open_pools(self) -> SglangPools:
        return SglangPools(self.config, swa_options={"enable_kvcache_transpose": False})

    def component_type(self) -> Any:
        return import_from("sglang.srt.mem_cache.unified_cache_components", "ComponentType")[0]

    def prefix_slots(self, found: Any) -> Slots:
        return np.array(found.device_indices.numpy(), dtype=np.int64)

    def held_prefix(self, key: Key, found: Any) -> int:
        return self.held_now(key)

    def insert_options(self, window_start: int) -> dict[str, Any]:
        return {"swa_evicted_seqlen": window_start}

    def host_modules(self) -> Sequence[str]:
        return ("sglang.srt.mem_cache.memory_pool_host",)

    def node_of(self, handle: Handle) -> Any:
        return handle

    def ongoing_writes(self) -> Iterator[tuple[Handle, Any, list[Any]]]:
        return iter(self.cache.ongoing_write_through.values())

    def is_arriving(self, component: str, slots: Any) -> bool:
        return True  # a node is copied at once, with all its components

    def locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_0513(self.cache.root_node, receipt.node, receipt.params)

    def host_locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_on_host_0513(self.cache.root_node, receipt.node, receipt.params)

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


class Sglang0523(SglangAdapter):
    """SGLang 0.5.23. `core`: the tree implementation behind the cache: SGLang's name for it, and its class."""

    version = "0.5.23"
    locks_tombstones = True
    core: ClassVar[tuple[str, str]]

    def __init__(self, config: CacheConfig) -> None:
        if config.bigram and MAMBA in config.components:
            raise ConfigurationError("SGLang 0.5.23 supports no bigram keys together with MAMBA")
        super().__init__(config)
        if config.host is not None and config.host.write_policy is WritePolicy.WRITE_BACK:
            self.departures |= {"EVICT-5"}  # a leaf takes the window above it to the host, without its FULL data
        # When SGLang cannot load the requested core, it silently uses the other one.
        opened = type(self.cache.tree_core).__name__
        if opened != self.core[1]:
            raise ImportError(f"{type(self).__name__} needs {self.core[1]}, but SGLang opened {opened}")

    def publish(self) -> None:
        context = import_from("sglang.srt.runtime_context").get_context()
        options = {} if self.config.host is None else server_options(self.config, self.config.host)
        context.override_server_args(_mamba_cache_chunk_size=chunk_size(self.config), **options).install()

    def open_pools(self) -> SglangPools:
        return SglangPools(self.config, swa_options={})

    def component_type(self) -> Any:
        return import_from("sglang.srt.mem_cache.unified_cache.component_type", "ComponentType")[0]

    def open_options(self) -> dict[str, Any]:
        return {"tree_core_backend": self.core[0]}

    def prefix_slots(self, found: Any) -> Slots:
        slots = np.array(self.cache.path_device_indices(found.last_device_node).numpy(), dtype=np.int64)
        assert len(slots) == found.device_prefix_len, f"a path of {len(slots)} slots for {found.device_prefix_len}"
        return slots

    def held_prefix(self, key: Key, found: Any) -> int:
        return int(found.full_kv_hit_length)

    def insert_options(self, window_start: int) -> dict[str, Any]:
        return {"component_evicted_seqlens": {self.component_type().SWA: window_start}}

    def host_modules(self) -> Sequence[str]:
        package = "sglang.srt.mem_cache.pool_host"
        return [f"{package}.{name}" for name in ("base", "common", "mha", "mamba")]

    def node_of(self, handle: Handle) -> Any:
        return self.cache.tree_core.node_by_id(handle)

    def ongoing_writes(self) -> Iterator[tuple[Handle, Any, list[Any]]]:
        for handle, params, handles in self.cache.ongoing_write_through.values():
            yield handle, params, [self.node_of(one) for one in handles]

    def is_arriving(self, component: str, slots: Any) -> bool:
        return bool(arriving_slots(self.cache.cache_controller.write_queue, component, slots).all())

    def locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_0523(self.cache.root_node, self.node_of(receipt.node), receipt.params)

    def host_locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_on_host_0523(self.cache.root_node, self.node_of(receipt.node), receipt.params)

    def clocks(self) -> Sequence[str]:
        return ("sglang.srt.utils.poll_timer", "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller")

    def set_ranks(self, ranks: Topology) -> None:
        (parallel,) = import_from("sglang.srt.runtime_context", "get_parallel")
        tensor = {f"{group}_rank": ranks.tp_rank for group in ("tp", "attn_tp", "moe_tp")}
        tensor |= {f"{group}_size": ranks.tp_size for group in ("tp", "attn_tp", "moe_tp")}
        named = {**tensor, "pp_rank": ranks.pp_rank, "pp_size": ranks.pp_size, "attn_dcp_rank": 0}
        parallel().override_permanently(**named)
        controller = import_from("sglang.srt.managers.cache_controller")
        controller.is_dp_attention_enabled = lambda: False
        controller.HiCacheController.get_attn_cp_rank_and_size = lambda _: (ranks.cp_rank, ranks.cp_size)

    def request_named(self, name: str) -> Handle:
        return self.base.CacheRequestHandle(name, 0)

    def begin_prefetch(self, request: Handle, anchor: Handle, key: Key, start: int) -> None:
        cache = self.cache
        before = cache.get_prefix_hash_values(anchor) if cache.hicache_storage_pass_prefix_keys else None
        cache.prefetch_from_storage(
            request,
            anchor,
            array("q", key.tokens[start:].tolist()),
            cache.get_last_hash_value(anchor),
            before,
            matched_prefix_tokens=array("q", key.tokens[:start].tolist()),
            **self.key_options(key.namespace),
        )

    def can_anchor(self, anchor: Handle) -> bool:
        return bool(self.cache.is_backuped(anchor) or self.cache.is_root(anchor))

    def hashes_of(self, key: Any) -> Sequence[str]:
        (compute,) = import_from("sglang.srt.mem_cache.utils", "get_storage_hash_str")
        hashes: Sequence[str] = compute(key, None, page_size=self.config.page_size)
        return hashes

    def transfers_of_thread(self, operation: Any) -> Iterable[Any]:
        return () if operation.pool_transfers_done else operation.pool_transfers or ()

    def key_options(self, namespace: Namespace) -> dict[str, Any]:
        others = {"lora": namespace.lora, "tenant": namespace.tenant}
        return {"extra_key": extra_key(others), "cache_salt": namespace.salt}


class Sglang0523Python(Sglang0523):
    """SGLang 0.5.23 with its tree in Python."""

    capabilities = DEVICE | TIERS
    core = ("python", "UnifiedTreeCore")

    def snapshot(self) -> Snapshot:
        return self.show()


class Sglang0523Rust(Sglang0523):
    """SGLang 0.5.23 with its tree in Rust, whose nodes cannot be read."""

    capabilities = DEVICE
    core = ("rust", "RustUnifiedTreeCore")

    def count_victims(self, component: str) -> int:
        # Victims cannot be counted: 1 stands for any number of them.
        return int(self.pools.free_lists[component].available_size() < self.config.capacity_tokens[component])
