"""A fixed configuration of two tiers: pages of one token, a window of one page, stepped transfers."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, ExecutorKind, HostConfig, Layout, WritePolicy
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.types import Component


def fixed_config(
    device: Mapping[str, int], host: Mapping[str, int], write_policy: WritePolicy, *, events: bool
) -> CacheConfig:
    """The configuration. `device`, `host`: the pages of each component's pool."""
    return CacheConfig(
        components=tuple(device),
        page_size=1,
        capacity_tokens=device,
        sliding_window_size=1 if Component.SWA in device else None,
        mamba_chunk_size=1 if Component.MAMBA in device else None,
        policy=EvictionPolicy.LRU,
        bigram=False,
        events=events,
        layout=Layout.LAYER_FIRST,
        device="cpu",
        model=TINY_MODEL,
        topology=SINGLE_RANK,
        host=HostConfig(
            capacity_tokens=host,
            layout=Layout.LAYER_FIRST,
            write_policy=write_policy,
            selective_hits=1,
            load_back_threshold_tokens=0,
            executor=ExecutorKind.STEPPED,
        ),
    )
