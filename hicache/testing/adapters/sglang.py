"""The releases of SGLang under the suites: 0.5.13.post1, and 0.5.23 with its tree in Python and with that in Rust."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig, WritePolicy
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.adapters.sglang_cache import SglangAdapter
from hicache.testing.adapters.sglang_host import Receipt
from hicache.testing.adapters.sglang_host_pools import arriving_slots, is_small, server_options
from hicache.testing.adapters.sglang_import import import_from
from hicache.testing.adapters.sglang_locks import Locked, locked_0513, locked_0523
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
"""What is driven on the device with any core."""


def chunk_size(config: CacheConfig) -> int:
    """Tokens between the states that a prefill keeps: never less than a page."""
    return max(config.mamba_chunk_size or 1, config.page_size)


class Sglang0513(SglangAdapter):
    """SGLang 0.5.13.post1."""

    version = "0.5.13.post1"
    locks_tombstones = False
    capabilities = DEVICE | {Capability.SNAPSHOT, Capability.HOST}

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        host = config.host
        if host is not None and host.write_policy is WritePolicy.WRITE_BACK and is_small(config, host):
            self.departures |= {"EVICT-7"}  # it opens no such host, and waits for room for what leaves the device

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
        return True  # a node is copied at once with all that it has

    def locked_by(self, receipt: Receipt) -> Iterator[Locked]:
        return locked_0513(self.cache.root_node, receipt.node, receipt.params)

    def key_options(self, namespace: Namespace) -> dict[str, Any]:
        return {"extra_key": extra_key(dataclasses.asdict(namespace))}

    def snapshot(self) -> Snapshot:
        return self.show()


class Sglang0523(SglangAdapter):
    """SGLang 0.5.23. `core`: which tree works behind the cache, by SGLang's own name and the name of its class."""

    version = "0.5.23"
    locks_tombstones = True
    core: ClassVar[tuple[str, str]]

    def __init__(self, config: CacheConfig) -> None:
        if config.bigram and MAMBA in config.components:
            raise ConfigurationError("with states SGLang 0.5.23 takes single tokens for keys, not the pairs asked for")
        super().__init__(config)
        if config.host is not None and config.host.write_policy is WritePolicy.WRITE_BACK:
            self.departures |= {"EVICT-5"}  # a leaf takes the window above it to the host, without its FULL data
        # Where SGLang cannot load the core that was asked for, it takes the other one and says nothing.
        opened = type(self.cache.tree_core).__name__
        if opened != self.core[1]:
            raise ImportError(f"{type(self).__name__} drives {self.core[1]}, SGLang opened {opened}")

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

    def key_options(self, namespace: Namespace) -> dict[str, Any]:
        others = {"lora": namespace.lora, "tenant": namespace.tenant}
        return {"extra_key": extra_key(others), "cache_salt": namespace.salt}


class Sglang0523Python(Sglang0523):
    """SGLang 0.5.23 with its tree in Python."""

    capabilities = DEVICE | {Capability.SNAPSHOT, Capability.HOST}
    core = ("python", "UnifiedTreeCore")

    def snapshot(self) -> Snapshot:
        return self.show()


class Sglang0523Rust(Sglang0523):
    """SGLang 0.5.23 with its tree in Rust, which does not show its nodes."""

    capabilities = DEVICE
    core = ("rust", "RustUnifiedTreeCore")

    def count_victims(self, component: str) -> int:
        # What cannot be counted is told as one victim, or none.
        return int(self.pools.free_lists[component].available_size() < self.config.capacity_tokens[component])
