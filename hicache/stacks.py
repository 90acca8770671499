"""Pool stacks: which pools a model needs, what a slot of each holds, and the order of its layers over all pools."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.pools.specs import BufferSpec, PoolSpec
from hicache.pools.tier import owner_of
from hicache.types import Component, Pool


def pool_specs(config: CacheConfig) -> dict[Pool, PoolSpec]:
    """The pools of a configuration on one rank. Raises ConfigurationError when the ranks cannot share the model."""
    specs = {Pool.KV: _attention(config, Pool.KV, config.model.full_layers)}
    if Component.SWA in config.components:
        specs[Pool.SWA] = _attention(config, Pool.SWA, config.model.swa_layers)
    if Component.MAMBA in config.components:
        specs[Pool.MAMBA] = _recurrent(config)
    if Pool.INDEXER in config.sidecars:
        specs[Pool.INDEXER] = _indexer(config)
    return specs


def layer_order(specs: Mapping[Pool, PoolSpec]) -> tuple[tuple[tuple[Pool, int], ...], ...]:
    """The layers of the whole stack, first to last: the pools that each reads, and its number in those.

    Kinds of layers take turns. A full-attention layer reads its indexer too.
    """
    kinds: dict[str, list[Pool]] = {}
    for pool in specs:
        kinds.setdefault(owner_of(pool), []).append(pool)
    depth = max(spec.layers for spec in specs.values())
    turns = [
        tuple((pool, n) for pool in kind if n < specs[pool].layers) for n in range(depth) for kind in kinds.values()
    ]
    return tuple(layer for layer in turns if layer)


def _attention(config: CacheConfig, pool: Pool, layers: int) -> PoolSpec:
    heads = config.model.kv_heads
    shape = (heads if config.model.is_mla else _share(config, "kv_heads", heads), config.model.head_dim)
    # Keys and values lie side by side, so that a page of a layer is one run: half as many pieces to copy.
    buffers = (BufferSpec("kv", (2, *shape), _dtype(config)),)
    return PoolSpec(pool, _stage(config, layers), buffers, config.layout)


def _recurrent(config: CacheConfig) -> PoolSpec:
    conv = (_share(config, "conv_elements", config.model.conv_elements),)
    temporal = (_share(config, "state_elements", config.model.state_elements),)
    # The temporal state keeps float32 whatever the model's dtype: it accumulates over the whole prompt.
    buffers = (BufferSpec("conv", conv, _dtype(config)), BufferSpec("temporal", temporal, torch.float32))
    return PoolSpec(Pool.MAMBA, _stage(config, config.model.mamba_layers), buffers, config.layout)


def _indexer(config: CacheConfig) -> PoolSpec:
    buffers = (BufferSpec("index", (config.model.index_dim,), _dtype(config)),)
    return PoolSpec(Pool.INDEXER, _stage(config, config.model.full_layers), buffers, config.layout)


def _dtype(config: CacheConfig) -> torch.dtype:
    dtype = getattr(torch, config.model.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigurationError(f"model dtype {config.model.dtype!r} is no dtype of torch")
    return dtype


def _share(config: CacheConfig, name: str, elements: int) -> int:
    size = config.topology.tp_size
    if elements % size:
        raise ConfigurationError(f"{name}={elements} cannot be divided over tp_size={size}")
    return elements // size


def _stage(config: CacheConfig, layers: int) -> int:
    """Layers of this pipeline stage: the first stages take one more when they don't divide evenly."""
    rank, size = config.topology.pp_rank, config.topology.pp_size
    return layers // size + (rank < layers % size)
