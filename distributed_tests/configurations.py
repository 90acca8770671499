"""The configurations and the meshes of the ranks: the richest one of the adapter, on two to four ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import CacheConfig, ExecutorKind, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.configurations import Kind
from hicache.testing.devices import missing_device
from hicache.testing.hybrid_model import reshaped
from hicache.testing.plugin.selection import configurations_of
from hicache.testing.ranks.world import Mesh
from hicache.types import Component, StopPolicy

RANKED: Mapping[str, int] = {"kv_heads": 4, "conv_elements": 4, "state_elements": 8}
"""Makes a model one that divides over four tensor-parallel ranks and over two stages."""


def configuration(
    adapter_type: type[CacheAdapter],
    *,
    write_policy: WritePolicy = WritePolicy.WRITE_THROUGH,
    stop_policy: StopPolicy | None = StopPolicy.WAIT_COMPLETE,
    kind: Kind | None = None,
) -> CacheConfig:
    """The richest configuration of the adapter whose transfers a test can move; skips the test if there is none.

    `stop_policy`: of the storage tier; None for a cache without one. `kind`: components and sidecars; None for any.
    """
    fitting = [
        config
        for config in configurations_of(adapter_type, quick=False)
        if kind in (None, (config.components, config.sidecars))
        and config.host is not None
        and config.host.executor is ExecutorKind.STEPPED
        and config.host.write_policy is write_policy
        and config.host.load_back_threshold_tokens == 0
        and (config.storage.stop_policy if config.storage is not None else None) is stop_policy
        and (config.storage is None or config.storage.extra.prefetch_threshold == 0)
    ]
    if not fitting:
        pytest.skip(f"{adapter_type.__name__} serves no {write_policy.value} with {stop_policy} that a test can move")
    richest = max(fitting, key=lambda config: (len(config.components), len(config.sidecars), config.page_size))
    return replace(richest, model=reshaped(richest.model, **RANKED))


def on_streams(config: CacheConfig) -> CacheConfig:
    """The same with copies on CUDA streams, on the GPU of the rank or on a model of one."""
    assert config.host is not None, f"{config.name} has a host tier"
    return replace(config, device="cuda", host=replace(config.host, executor=ExecutorKind.STREAMS))


def class_on_streams(adapter_type: type[CacheAdapter], order: int) -> type[CacheAdapter]:
    """The class of a cache on CUDA streams: on a model where torch finds no GPU. Skips the test if there is neither.

    `order`: the seed of the order in which the streams of a model go on.
    """
    missing = missing_device("cuda")
    opened = adapter_type.on_model(order) if missing else adapter_type
    if opened is None:
        pytest.skip(f"{missing}, and {adapter_type.__name__} does not run on a model of CUDA")
    return opened


def full_alone(config: CacheConfig, page_size: int, pages: int) -> CacheConfig:
    """The same with FULL alone, and with room for so many pages on both tiers and in one prefetch."""
    model = reshaped(config.model, index_dim=0, others=())
    return with_room(config, (Component.FULL.value,), page_size, pages, model=model, sliding_window_size=None)


def with_room(
    config: CacheConfig, components: tuple[str, ...], page_size: int, pages: int, **changes: Any
) -> CacheConfig:
    """The same with these components, with pages of this size, and with room for so many."""
    assert config.host is not None, f"{config.name} has a host tier"
    room = dict.fromkeys(components, pages * page_size)
    return replace(
        config,
        components=components,
        page_size=page_size,
        mamba_chunk_size=page_size if Component.MAMBA in components else None,
        capacity_tokens=room,
        host=replace(config.host, capacity_tokens=room),
        storage=config.storage and replace(config.storage, limit_tokens=pages * page_size),
        **changes,
    )


TP1 = Mesh(tp_size=1, cp_size=1, pp_size=1)
TP2 = Mesh(tp_size=2, cp_size=1, pp_size=1)
TP4 = Mesh(tp_size=4, cp_size=1, pp_size=1)
CP2_TP2 = Mesh(tp_size=2, cp_size=2, pp_size=1)
PP2_TP2 = Mesh(tp_size=2, cp_size=1, pp_size=2)

ALL_MESHES = (TP2, TP4, CP2_TP2, PP2_TP2)
"""The meshes of several ranks. TP1 is for machines with one GPU."""


def on_meshes(*meshes: Mesh) -> pytest.MarkDecorator:
    """Run a test on these meshes, in a quick run on the first with several ranks. It takes `launch`, or `mesh`."""
    return pytest.mark.meshes(*meshes)
