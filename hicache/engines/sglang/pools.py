"""SglangPools and SglangHostPools: SGLang's pools of both tiers for a configuration, and the bytes in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from hicache.config import CacheConfig, HostConfig, Layout
from hicache.engines.sglang.imports import import_from
from hicache.engines.sglang.pages import backend_options
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.testing.adapter import PageBytes
from hicache.testing.hybrid_model import HybridModel
from hicache.testing.snapshot import PoolView
from hicache.types import COMPONENT_POOL, NO_SLOTS, Component, Pool, Slots

FULL, SWA, MAMBA = (component.value for component in Component)

REQUESTS = 8
"""The number of rows of SGLang's request table, which the adapter leaves empty."""

NAMES = {FULL: "kv", SWA: "swa", MAMBA: "mamba"}
"""SGLang's name of the host pool of each component."""

LAYER_FIRST, PAGE_FIRST_DIRECT = "layer_first", "page_first_direct"
"""The layouts of SGLang that can be copied without a GPU kernel."""


class SglangPools:
    """Opens the pools of one cache. Raises ConfigurationError for a pool that SGLang does not have.

    `allocator`: of FULL slots, with SWA partners when there is SWA. `requests`: SGLang's request table, which owns the
    states. `free_lists`: the allocator of each component, by name. `swa_options`: options that only some releases have
    for a pool with two kinds of layers.
    """

    def __init__(self, config: CacheConfig, swa_options: Mapping[str, Any]) -> None:
        self.refuse(config)
        self.config = config
        self._swa_options = swa_options
        self._model = HybridModel.of(config.model)
        self._dtype = getattr(torch, self._model.dtype)
        self.requests = self._open_requests()
        kv = self._open_kv()
        self.allocator = self._open_allocator(kv)
        self.free_lists = self._free_lists()
        self.buffers = self._buffers(kv)
        self.roots = self._roots(kv)

    def refuse(self, config: CacheConfig) -> None:
        """Raise ConfigurationError for a configuration that these pools do not support."""
        unknown = {*config.sidecars, *config.components} - {FULL, SWA, MAMBA}
        if unknown:
            raise ConfigurationError(f"{sorted(unknown)}: not supported on SGLang")
        if config.device != "cpu":
            raise ConfigurationError(f"device {config.device!r}: SGLang is supported on 'cpu' only")
        if config.model is not None and config.model.is_mla:
            raise ConfigurationError("is_mla True: pools of MLA models are not supported on SGLang")
        if config.host is not None and {SWA, MAMBA} <= set(config.components):
            raise ConfigurationError("SGLang has no host tier for SWA and MAMBA together")

    def allocate(self, tokens: int) -> Slots | None:
        """Allocate slots of whole pages, with SWA partners, or None."""
        if SWA not in self.config.components or self.config.page_size == 1:
            taken = self.allocator.alloc(tokens)
            return None if taken is None else taken.numpy().copy()
        # SGLang allocates whole pages of both sides in a GPU kernel: here each side is allocated, then paired.
        if any(self.free_lists[side].available_size() < tokens for side in (FULL, SWA)):
            return None
        taken, partners = (self.free_lists[side].alloc(tokens) for side in (FULL, SWA))
        self.allocator.set_full_to_swa_mapping(taken, partners)
        return np.array(taken.numpy())

    def free(self, slots: Slots) -> None:
        """Free slots, with their SWA partners where they have them."""
        # SGLang 0.5.23 has `free_full` for slots without a partner: `free` would free the padding slot for each.
        if SWA in self.config.components and hasattr(self.allocator, "free_full"):
            is_paired = self.partners(slots) > 0
            self.allocator.free_full(as_tensor(slots[~is_paired]))
            slots = slots[is_paired]
        self.allocator.free(as_tensor(slots))

    def partners(self, slots: Slots) -> Slots:
        """The SWA slot of each FULL slot, or 0."""
        return np.array(self.allocator.translate_loc_from_full_to_swa(as_tensor(slots)).numpy(), dtype=np.int64)

    def view(self, component: str) -> PoolView:
        """The free slots of a component as its allocator lists them; a slot that it lists twice is shown twice."""
        allocator = self.free_lists[component]
        capacity = self.config.capacity_tokens[component]
        if component == MAMBA:
            return PoolView(capacity, np.array(allocator.free_slots.numpy(), dtype=np.int64))
        pages = _free_pages(allocator)
        size = self.config.page_size
        return PoolView(capacity, (pages[:, None] * size + np.arange(size)).reshape(-1))

    def layers(self, pool: str) -> int:
        """The number of layers of a pool."""
        return len(self.buffers.get(pool, ()))

    def slot_bytes(self, pool: str) -> int:
        """The bytes of one slot in one layer: of K and V, or of the convolution's and the recurrent state."""
        return sum(part[0].nbytes for part in self.buffers[pool][0])

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        """Write bytes, K before V."""
        start = 0
        for part in self.buffers[pool][layer]:
            end = start + part[0].nbytes
            raw = torch.from_numpy(np.ascontiguousarray(data[:, start:end]))
            part[as_tensor(slots)] = raw.view(part.dtype).reshape(len(slots), *part.shape[1:])
            start = end

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        """Read bytes, in the order in which they were written."""
        rows = [part[as_tensor(slots)] for part in self.buffers[pool][layer]]
        return np.concatenate([raw_bytes(row) for row in rows], axis=1)

    def copy_state(self, source: Slots, target: Slots) -> None:
        """Copy a state from one slot to another, as SGLang's scheduler does on the device."""
        self.requests.mamba_pool.copy_from(as_tensor(source), as_tensor(target))

    def _open_requests(self) -> Any:
        plain, hybrid = import_from("sglang.srt.mem_cache.memory_pool", "ReqToTokenPool", "HybridReqToTokenPool")
        shape = {"size": REQUESTS, "max_context_len": REQUESTS, "device": "cpu", "enable_memory_saver": False}
        if MAMBA not in self.config.components:
            return plain(**shape)
        layers = list(range(self._model.mamba_layers))
        return hybrid(
            **shape,
            mamba_size=self.config.capacity_tokens[MAMBA],
            mamba_spec_state_size=REQUESTS,
            cache_params=self._state_params(layers),
            mamba_layer_ids=layers,
            enable_mamba_extra_buffer=self.config.page_size > 1,
        )

    def _state_params(self, layers: list[int]) -> Any:
        params, dtype = import_from("sglang.srt.configs.mamba_utils", "Mamba2CacheParams", "Mamba2StateDType")
        model = self._model
        # The pool uses only these two fields of a state's shape.
        shape = SimpleNamespace(conv=[(model.conv_elements, 1)], temporal=(1, 1, model.state_elements))
        return params(layers=layers, shape=shape, dtype=dtype(conv=self._dtype, temporal=torch.float32))

    def _open_kv(self) -> Any:
        (pool_type,) = import_from("sglang.srt.mem_cache.memory_pool", "MHATokenToKVPool")
        model, capacity = self._model, self.config.capacity_tokens
        shape = {
            "size": capacity[FULL],
            "page_size": self.config.page_size,
            "dtype": self._dtype,
            "head_num": model.kv_heads,
            "head_dim": model.head_dim,
            "device": "cpu",
        }
        if MAMBA in capacity and self.config.host is not None:
            return self._open_hybrid(shape)
        if SWA not in capacity:
            return pool_type(**shape, layer_num=model.full_layers, enable_memory_saver=False)
        (swa_type,) = import_from("sglang.srt.mem_cache.swa_memory_pool", "SWAKVPool")
        return self._open_swa(swa_type, shape)

    def _open_hybrid(self, shape: dict[str, Any]) -> Any:
        """FULL and the states in one pool, which only a host tier needs: the layers of MAMBA come first."""
        (hybrid,) = import_from("sglang.srt.mem_cache.memory_pool", "HybridLinearKVPool")
        model = self._model
        return hybrid(
            **shape,
            full_attention_layer_ids=list(range(model.mamba_layers, model.mamba_layers + model.full_layers)),
            mamba_pool=self.requests.mamba_pool,
            **self._swa_options,
        )

    def _open_swa(self, swa_type: Any, shape: dict[str, Any]) -> Any:
        """FULL and SWA in one pool: the layers of FULL come first."""
        full = self._model.full_layers
        return swa_type(
            **shape,
            size_swa=self.config.capacity_tokens[SWA],
            full_attention_layer_ids=list(range(full)),
            swa_attention_layer_ids=list(range(full, full + self._model.swa_layers)),
            **self._swa_options,
        )

    def _open_allocator(self, kv: Any) -> Any:
        module = "sglang.srt.mem_cache.allocator"
        size, page = self.config.capacity_tokens[FULL], self.config.page_size
        rest = (self._dtype, "cpu", kv, False)
        if SWA in self.config.components:
            (swa,) = import_from(f"{module}.swa", "SWATokenToKVPoolAllocator")
            return swa(size, self.config.capacity_tokens[SWA], page, *rest)
        if page == 1:
            (token,) = import_from(f"{module}.token", "TokenToKVPoolAllocator")
            return token(size, *rest)
        (paged,) = import_from(f"{module}.paged", "PagedTokenToKVPoolAllocator")
        return paged(size, page, *rest)

    def _free_lists(self) -> dict[str, Any]:
        lists = {FULL: self.allocator}
        if SWA in self.config.components:
            lists = {FULL: self.allocator.full_attn_allocator, SWA: self.allocator.swa_attn_allocator}
        if MAMBA in self.config.components:
            lists[MAMBA] = self.requests.mamba_allocator
        return lists

    def slot_counts(self) -> dict[str, int]:
        """The rows of a tensor with one for each slot: SGLang pads with a page, and with one state."""
        capacities, page = self.config.capacity_tokens, self.config.page_size
        return {name: capacities[name] + (1 if name == MAMBA else page) for name in self.config.components}

    def _roots(self, kv: Any) -> dict[str, Any]:
        """The pools that have tensors by slot; the table of partners, which has one too, lies above them."""
        roots = {Pool.KV.value: getattr(kv, "full_kv_pool", kv)}
        if SWA in self.config.components:
            roots[Pool.SWA.value] = kv.swa_kv_pool
        if MAMBA in self.config.components:
            roots[Pool.MAMBA.value] = self.requests.mamba_pool.mamba_cache
        return roots

    def _buffers(self, kv: Any) -> dict[str, list[Sequence[torch.Tensor]]]:
        """The tensors of each layer, each with one row per slot."""
        sides = {Pool.KV: getattr(kv, "full_kv_pool", kv)}
        if SWA in self.config.components:
            sides = {Pool.KV: kv.full_kv_pool, Pool.SWA: kv.swa_kv_pool}
        buffers: dict[str, list[Sequence[torch.Tensor]]] = {
            pool: [tuple(pair) for pair in zip(side.k_buffer, side.v_buffer, strict=True)]
            for pool, side in sides.items()
        }
        if MAMBA in self.config.components:
            states = self.requests.mamba_pool.mamba_cache
            layers = range(self._model.mamba_layers)
            buffers[Pool.MAMBA] = [(*(conv[layer] for conv in states.conv), states.temporal[layer]) for layer in layers]
        return buffers


def as_tensor(slots: Slots) -> torch.Tensor:
    """Slots as SGLang takes them."""
    return torch.from_numpy(np.array(slots, dtype=np.int64))


def raw_bytes(rows: torch.Tensor) -> PageBytes:
    """The bytes of each row."""
    flat = rows.contiguous().reshape(len(rows), -1)
    return flat.view(torch.uint8).numpy()


def _free_pages(allocator: Any) -> Slots:
    listed = [allocator.free_pages, allocator.release_pages, *getattr(allocator, "staged_pages", ())]
    pages = [part.numpy() for part in listed if part is not None and len(part)]
    return np.concatenate(pages).astype(np.int64) if pages else NO_SLOTS


class SglangHostPools:
    """Shows and reads host pools after they were opened. `group`: SGLang's host pools, by name.

    SGLang opens host pools only with at least the device's capacity, in one ratio for all: the excess slots are
    allocated at once and stay allocated. SGLang's host slots start at 0, as it needs no padding slot; they are shown
    one page later.
    """

    def __init__(self, config: CacheConfig, host: HostConfig, group: Any) -> None:
        self._config = config
        self._host = host
        self.group = group
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

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        """The bytes at host slots, in the same order as those of the device."""
        component = next(name for name, own in COMPONENT_POOL.items() if own == pool)
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
