"""Small configurations, and snapshots made by hand, for the kit's own tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hicache.config import SINGLE_RANK, CacheConfig, EvictionPolicy, ExecutorKind, HostConfig, Layout, WritePolicy
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot, TransferView
from hicache.types import SHARED, Component, Namespace, Slots

FULL, SWA, MAMBA = Component.FULL.value, Component.SWA.value, Component.MAMBA.value


def tiny_config(
    *components: str,
    page_size: int = 2,
    pages: int = 4,
    window: int = 2,
    bigram: bool = False,
    write_policy: WritePolicy | None = None,
) -> CacheConfig:
    """A cache with this many pages (and states) per component; with a write policy, as many on the host."""
    capacities = {c: pages if c == MAMBA else pages * page_size for c in components}
    return CacheConfig(
        components=components,
        page_size=page_size,
        capacity_tokens=capacities,
        sliding_window_size=window if SWA in components else None,
        mamba_chunk_size=page_size if MAMBA in components else None,
        policy=EvictionPolicy.LRU,
        bigram=bigram,
        events=False,
        layout=Layout.LAYER_FIRST,
        device="cpu",
        model=TINY_MODEL,
        topology=SINGLE_RANK,
        host=None if write_policy is None else _host_config(capacities, write_policy),
    )


def _host_config(capacities: Mapping[str, int], write_policy: WritePolicy) -> HostConfig:
    return HostConfig(
        capacity_tokens=capacities,
        layout=Layout.PAGE_FIRST,
        write_policy=write_policy,
        selective_hits=1,
        load_back_threshold_tokens=0,
        executor=ExecutorKind.STEPPED,
    )


def slots(*numbers: int) -> Slots:
    """An array of slots."""
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
    """A node of plain tokens, unlocked by default."""
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
    """A pool with these free slots."""
    return PoolView(capacity, slots(*free))


def below(
    held: Mapping[str, Slots | None],
    *,
    locks: Mapping[str, int] | None = None,
    pins: Mapping[str, int] | None = None,
    host_pins: Mapping[str, int] | None = None,
) -> HostNodeView:
    """A node's data on the host; by default unlocked, and not pinned on any tier."""
    none = dict.fromkeys(held, 0)
    return HostNodeView(held, none | dict(locks or {}), none | dict(pins or {}), none | dict(host_pins or {}))


def host_tier(
    nodes: Sequence[HostNodeView],
    pools: Mapping[str, PoolView],
    *transfers: TransferView,
    kept: Mapping[str, Slots] | None = None,
) -> HostView:
    """A host tier, by default with no kept slots."""
    return HostView(tuple(nodes), pools, transfers, kept or {})


def snapshot(nodes: Sequence[NodeView], pools: Mapping[str, PoolView], host: HostView | None = None) -> Snapshot:
    """The snapshot of a whole cache."""
    return Snapshot(tuple(nodes), pools, host, storage=None)
