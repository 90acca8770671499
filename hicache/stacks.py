"""Pool stacks: the pools of a cache on one rank, and the order of the model's layers over all of them."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import BufferShape, CacheConfig, PoolShape
from hicache.errors import ConfigurationError
from hicache.optional_torch import require_torch, torch
from hicache.pools.buffers import BufferSpec, PoolSpec


def pool_specs(config: CacheConfig) -> dict[str, PoolSpec]:
    """The pools of a configuration on one rank; none without a model.

    Pools of components that the cache does not have are left out. Raises ConfigurationError when the ranks cannot share
    the model, and for a dtype that this release of torch does not have.
    """
    model = config.model
    if model is None:
        return {}
    config.require_divisible()
    require_torch("a cache with a model")
    return {pool.name: _spec(config, pool) for pool in model.pools if pool.follows.component in config.components}


def layer_order(specs: Mapping[str, PoolSpec]) -> tuple[tuple[tuple[str, int], ...], ...]:
    """The layers of the whole stack, first to last: the pools that each reads, and its number in those.

    Kinds of layers alternate. A full-attention layer reads its sidecars too.
    """
    kinds: dict[str, list[str]] = {}
    for pool, spec in specs.items():
        kinds.setdefault(spec.owner, []).append(pool)
    depth = max((spec.layers for spec in specs.values()), default=0)
    layers = [
        tuple((pool, n) for pool in kind if n < specs[pool].layers) for n in range(depth) for kind in kinds.values()
    ]
    return tuple(layer for layer in layers if layer)


def _spec(config: CacheConfig, pool: PoolShape) -> PoolSpec:
    buffers = tuple(BufferSpec(buffer.name, _share(config, buffer), _dtype(buffer)) for buffer in pool.buffers)
    owner, layers = pool.follows.component, _stage(config, pool.layers)
    return PoolSpec(pool.name, owner, layers, buffers, config.layout, pool.tokens_per_entry)


def _dtype(buffer: BufferShape) -> torch.dtype:
    dtype = getattr(torch, buffer.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigurationError(f"model dtype {buffer.dtype!r} is not a dtype of torch")
    return dtype


def _share(config: CacheConfig, buffer: BufferShape) -> tuple[int, ...]:
    """The item of one rank: tensor-parallel ranks divide one axis of it."""
    axis, shape = buffer.tp_axis, buffer.shape
    if axis is None:
        return shape
    return (*shape[:axis], shape[axis] // config.topology.tp_size, *shape[axis + 1 :])


def _stage(config: CacheConfig, layers: int) -> int:
    """Layers of this pipeline stage: the first stages have one more when they don't divide evenly."""
    rank, size = config.topology.pp_rank, config.topology.pp_size
    return layers // size + (rank < layers % size)
