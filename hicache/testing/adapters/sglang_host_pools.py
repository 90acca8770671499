"""SglangHostPools: SGLang's host pools with exactly the capacity of a configuration, and the bytes in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hicache.config import CacheConfig, HostConfig, Layout
from hicache.testing.adapter import PageBytes
from hicache.testing.adapters.sglang_import import import_from
from hicache.testing.adapters.sglang_pages import backend_options
from hicache.testing.adapters.sglang_pools import FULL, MAMBA, SWA, raw_bytes
from hicache.testing.snapshot import PoolView
from hicache.types import COMPONENT_POOL, Pool, Slots

NAMES = {FULL: "kv", SWA: "swa", MAMBA: "mamba"}
"""SGLang's name of the host pool of each component."""

LAYER_FIRST, PAGE_FIRST_DIRECT = "layer_first", "page_first_direct"
"""The layouts of SGLang that can be copied without a GPU kernel."""


class SglangHostPools:
    """Shows and reads host pools after they were opened.

    SGLang opens host pools only with at least the device's capacity, in one ratio for all: the excess slots are
    allocated at once and stay allocated. SGLang's host slots start at 0, as it needs no padding slot; they are shown
    one page later.
    """

    def __init__(self, config: CacheConfig, host: HostConfig, group: Any) -> None:
        self._config = config
        self._host = host
        self._pools = {name: group.get_pool(NAMES[name]) for name in config.components}
        self.reserve()

    def reserve(self) -> None:
        """Allocate the excess slots; once more after a reset."""
        self._reserved = {
            name: pool.alloc(pool.size - self._host.capacity_tokens[name]) for name, pool in self._pools.items()
        }

    def available(self) -> dict[str, int]:
        """Free slots of each component."""
        return {name: pool.available_size() for name, pool in self._pools.items()}

    def shown(self, component: str, slots: Any) -> Slots:
        """SGLang's host slots as a snapshot shows them."""
        return np.array(slots.numpy(), dtype=np.int64) + self._shift(component)

    def view(self, component: str) -> PoolView:
        """The free slots of a component as SGLang lists them; a slot that it lists twice is shown twice."""
        pool = self._pools[component]
        free = torch.cat([pool.free_slots, *getattr(pool, "release_slots", ())])
        return PoolView(self._host.capacity_tokens[component], self.shown(component, free))

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        """The bytes at host slots, in the same order as those of the device."""
        component = next(name for name, own in COMPONENT_POOL.items() if own is pool)
        raw = torch.from_numpy(np.array(slots, dtype=np.int64) - self._shift(component))
        return np.concatenate([raw_bytes(self._rows(part, raw, layer)) for part in self._parts(component)], axis=1)

    def _shift(self, component: str) -> int:
        return 1 if component == MAMBA else self._config.page_size

    def _parts(self, component: str) -> Sequence[torch.Tensor]:
        pool = self._pools[component]
        if component == MAMBA:
            return [*pool.conv_buffer, pool.temporal_buffer]
        return [pool.k_buffer, pool.v_buffer]

    def _rows(self, part: torch.Tensor, slots: torch.Tensor, layer: int) -> torch.Tensor:
        if layout_of(self._config, self._host) == LAYER_FIRST:
            return part[layer, slots]
        size = part.shape[2]
        return part[slots // size, layer, slots % size]


def layout_of(config: CacheConfig, host: HostConfig) -> str:
    """SGLang's layout of all host pools. Only some releases support another layout than by page for states."""
    by_layer = host.layout is Layout.LAYER_FIRST and MAMBA not in config.components
    return LAYER_FIRST if by_layer else PAGE_FIRST_DIRECT


def server_options(config: CacheConfig, host: HostConfig) -> Mapping[str, Any]:
    """SGLang's server options for the host tier and storage."""
    storage = config.storage
    ratios = [host.capacity_tokens[name] / tokens for name, tokens in config.capacity_tokens.items()]
    return {
        "hicache_io_backend": "direct",
        "hicache_mem_layout": layout_of(config, host),
        "hicache_ratio": float(math.ceil(max(1.0, *ratios))),
        "hicache_size": 0,
        "hicache_write_policy": host.write_policy.value,
        "hicache_storage_backend": None if storage is None else "dynamic",
        "hicache_storage_backend_extra_config": None if storage is None else backend_options(storage),
        "hicache_storage_prefetch_policy": "best_effort" if storage is None else storage.stop_policy.value,
        "served_model_name": "tiny" if storage is None else storage.model,
        "file_storage_path": None,
        "extra_metric_labels": None,
    }


def is_small(config: CacheConfig, host: HostConfig) -> bool:
    """Whether the host has a smaller capacity than the device for some component."""
    return any(host.capacity_tokens[name] < tokens for name, tokens in config.capacity_tokens.items())


def arriving_slots(operations: Sequence[Any], component: str, slots: torch.Tensor) -> torch.Tensor:
    """Which of these host slots are the target of a waiting operation: [slots] of bool."""
    if component == FULL:
        targets = [one.host_indices for one in operations]
    else:
        extra = [transfer for one in operations for transfer in one.pool_transfers or ()]
        targets = [transfer.host_indices for transfer in extra if transfer.name == NAMES[component]]
    return torch.isin(slots, torch.cat(targets)) if targets else torch.zeros(len(slots), dtype=torch.bool)


def replace_kernels(modules: Sequence[str]) -> None:
    """Replace SGLang's copies between the tiers by torch copies, and its pinned host memory by ordinary memory."""
    for name in modules:
        module = import_from(name)
        module.transfer_kv_direct = _copy
        module.transfer_kv_all_layer_direct_lf_pf = _copy_to_pages
        module.transfer_kv_per_layer_direct_pf_lf = _copy_from_pages
        if hasattr(module, "ALLOC_MEMORY_FUNCS"):
            module.ALLOC_MEMORY_FUNCS["cpu"] = _ordinary_memory
        if hasattr(module, "HICACHE_HOST_MEMORY_RESERVE_BYTES"):
            module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0


def _ordinary_memory(dims: Any, dtype: torch.dtype, device: str, **_: Any) -> torch.Tensor:
    return torch.zeros(dims, dtype=dtype, device=device)


def _copy(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,  # noqa: ARG001 - SGLang passes it by name
) -> None:
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _copy_to_pages(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy from layers, grouped by target, into pages that hold all layers."""
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, source in enumerate(src_ptrs):
        target = dst_ptrs[number // layers]
        target[dst_indices // page_size, number % layers, dst_indices % page_size] = source[src_indices]


def _copy_from_pages(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[src_indices // page_size, layer_id, src_indices % page_size]
