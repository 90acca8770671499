"""The configuration of a cache whose slots hold the layers of a model, tier by tier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hicache.config import (
    BufferShape,
    CacheConfig,
    ExecutorKind,
    Follows,
    HostConfig,
    Layout,
    ModelShape,
    PoolShape,
    StorageConfig,
    Topology,
    WritePolicy,
)
from hicache.errors import ConfigurationError
from hicache.testing.hybrid_model import HybridModel, reshaped
from hicache.types import Component, Pool, StopPolicy

from .model_layout import CompressorPart, ModelLayout

PREFETCH_CAP_S = 60.0
FLOAT32_BYTES = 4


def device_config(
    layout: ModelLayout, *, page_size: int, chunk_tokens: int, tokens: int, states: int, device: str
) -> CacheConfig:
    """A cache on the device alone.

    `tokens`: capacity of FULL, and of SWA if the model has windows. `states`: capacity of MAMBA. `chunk_tokens`: a
    state is cached after each chunk. Raises ConfigurationError where a page would cut an entry of several tokens.
    """
    for part in layout.compressors:
        # An open entry is made of projections that no pool has, so a hit cannot end inside it.
        if page_size % part.rate:
            raise ConfigurationError(
                f"page_size={page_size} is not a multiple of tokens_per_entry={part.rate} of pool {part.pool!r}"
            )
    window = layout.window_tokens
    capacities = {Component.FULL.value: tokens}
    if window is not None:
        capacities[Component.SWA.value] = tokens
    if layout.states:
        capacities[Component.MAMBA.value] = states
    return CacheConfig(
        components=tuple(capacities),
        page_size=page_size,
        capacity_tokens=capacities,
        sliding_window_size=window,
        mamba_chunk_size=chunk_tokens if layout.states else None,
        device=device,
        model=model_shape(layout),
    )


def with_host(config: CacheConfig, *, tokens: int, states: int, policy: WritePolicy) -> CacheConfig:
    """The same with a host tier. CUDA streams run the transfers of a GPU, a thread those of a CPU."""
    is_cpu = config.device == "cpu"
    host = HostConfig(
        capacity_tokens={name: states if name == Component.MAMBA else tokens for name in config.components},
        layout=Layout.PAGE_FIRST,
        write_policy=policy,
        load_back_threshold_tokens=0,
        executor=ExecutorKind.THREADED if is_cpu else ExecutorKind.STREAMS,
    )
    return replace(config, host=host)


def with_storage(
    config: CacheConfig, *, backend: str, options: Mapping[str, Any], model: str, fingerprint: str
) -> CacheConfig:
    """The same with a storage tier below its host tier. A request waits until its prefetch is complete."""
    assert config.host is not None, "expected a configuration with a host tier, which storage needs"
    storage = StorageConfig(
        backend=backend,
        model=model,
        model_fingerprint=fingerprint,
        options=options,
        prefetch_threshold=0,
        prefetch_timeout_per_ki_token=1.0,
        stop_policy=StopPolicy.WAIT_COMPLETE,
        timeout_cap_s=PREFETCH_CAP_S,
        limit_tokens=config.host.capacity_tokens[Component.FULL],
    )
    return replace(config, storage=storage)


def on_replica(config: CacheConfig, topology: Topology) -> CacheConfig:
    """The same on one of several ranks, each of which runs the whole model.

    Neither weights nor slots are divided between ranks: the shape is that of a model which is wider by the number of
    tensor-parallel ranks. The ranks have to agree on what they cache.
    """
    model, size = HybridModel.of(config.model), topology.tp_size
    shape = reshaped(
        config.model,
        kv_heads=model.kv_heads * size,
        conv_elements=model.conv_elements * size,
        state_elements=model.state_elements * size,
    )
    return replace(config, topology=topology, model=shape)


def model_shape(layout: ModelLayout) -> ModelShape:
    """A shape whose slots hold the widest layer of each pool. What a compressor projects has a layer of SWA."""
    by_pool = {pool: [part for part in layout.attention if part.pool is pool] for pool in (Pool.KV, Pool.SWA)}
    size_bytes = layout.dtype.itemsize
    widths = [part.size_bytes for part in layout.attention] + [part.projected_bytes for part in layout.compressors]
    widest = max(widths, default=0)
    shape = ModelShape.hybrid(
        full_layers=len(by_pool[Pool.KV]),
        swa_layers=len(by_pool[Pool.SWA]) + len(layout.compressors),
        mamba_layers=len(layout.states),
        kv_heads=1,
        head_dim=_elements(widest, 2 * size_bytes),
        conv_elements=_elements(max((part.size_bytes("conv") for part in layout.states), default=0), size_bytes),
        state_elements=_elements(
            max((part.size_bytes("recurrent") for part in layout.states), default=0), FLOAT32_BYTES
        ),
        index_dim=_elements(max(part.keys.size_bytes for part in layout.index), size_bytes) if layout.index else 0,
        dtype=str(layout.dtype).removeprefix("torch."),
        is_mla=False,
    )
    return replace(shape, pools=(*shape.pools, *_entry_pools(layout.compressors)))


def _entry_pools(compressors: Sequence[CompressorPart]) -> Iterator[PoolShape]:
    """The sidecars of entries that several tokens have together."""
    by_pool: dict[str, list[CompressorPart]] = {}
    for part in compressors:
        by_pool.setdefault(part.pool, []).append(part)
    for name, parts in by_pool.items():
        entry = BufferShape("entries", parts[0].entry.shape, str(parts[0].entry.dtype).removeprefix("torch."))
        yield PoolShape(name, Follows.EVERY_PAGE, len(parts), (entry,), tokens_per_entry=parts[0].rate)


def _elements(widest_bytes: int, element_bytes: int) -> int:
    """The number of elements that hold `widest_bytes`, at least one."""
    return max(1, -(-widest_bytes // element_bytes))
