"""The configuration of the story: all components, a few pages on each tier, and stepped transfers."""

from __future__ import annotations

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, ExecutorKind, HostConfig, Layout, WritePolicy
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.types import Component

PAGE_SIZE = 4
"""Tokens in a page. In the story a token is a word."""

WINDOW = 16
"""Length of the sliding window in tokens."""

STORY = CacheConfig(
    components=(Component.FULL.value, Component.SWA.value, Component.MAMBA.value),
    page_size=PAGE_SIZE,
    capacity_tokens={Component.FULL.value: 32, Component.SWA.value: 32, Component.MAMBA.value: 4},
    sliding_window_size=WINDOW,
    mamba_chunk_size=PAGE_SIZE,
    policy=EvictionPolicy.LRU,
    bigram=False,
    events=False,
    layout=Layout.LAYER_FIRST,
    device="cpu",
    model=TINY_MODEL,
    topology=SINGLE_RANK,
    host=HostConfig(
        capacity_tokens={Component.FULL.value: 48, Component.SWA.value: 48, Component.MAMBA.value: 6},
        layout=Layout.PAGE_FIRST,
        write_policy=WritePolicy.WRITE_THROUGH,
        selective_hits=1,
        load_back_threshold_tokens=0,
        executor=ExecutorKind.STEPPED,
    ),
)
