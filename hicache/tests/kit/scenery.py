"""What the kit's own tests are played on: small configurations, and snapshots made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hicache.config import SINGLE_RANK, TINY_MODEL, CacheConfig, EvictionPolicy, Layout
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.types import SHARED, Component, Namespace, Slots

FULL, SWA, MAMBA = Component.FULL.value, Component.SWA.value, Component.MAMBA.value


def tiny_config(
    *components: str, page_size: int = 2, pages: int = 4, window: int = 2, bigram: bool = False
) -> CacheConfig:
    """A cache of so many pages (and states) per component."""
    return CacheConfig(
        components=components,
        sidecars=(),
        page_size=page_size,
        capacity_tokens={c: pages if c == MAMBA else pages * page_size for c in components},
        sliding_window_size=window if SWA in components else None,
        mamba_chunk_size=page_size if MAMBA in components else None,
        policy=EvictionPolicy.LRU,
        bigram=bigram,
        events=False,
        layout=Layout.LAYER_FIRST,
        device="cpu",
        model=TINY_MODEL,
        topology=SINGLE_RANK,
        host=None,
    )


def slots(*numbers: int) -> Slots:
    """Slots by number."""
    return np.array(numbers, dtype=np.int64)


def node(
    tokens: Sequence[int],
    held: Mapping[str, Slots | None],
    *,
    parent: int = -1,
    start: int = 0,
    end: int | None = None,
    namespace: Namespace = SHARED,
    locks: Mapping[str, int] | None = None,
) -> NodeView:
    """A node of plain tokens, unlocked unless said otherwise."""
    return NodeView(
        parent=parent,
        namespace=namespace,
        segment=np.array(tokens, dtype="<i4").tobytes(),
        start=start,
        end=start + len(tokens) if end is None else end,
        slots=held,
        locks=dict.fromkeys(held, 0) | dict(locks or {}),
        hits=0,
    )


def pool(capacity: int, *free: int) -> PoolView:
    """A pool with these slots free."""
    return PoolView(capacity, slots(*free))


def snapshot(nodes: Sequence[NodeView], pools: Mapping[str, PoolView]) -> Snapshot:
    """A whole cache."""
    return Snapshot(tuple(nodes), pools, host=None)
