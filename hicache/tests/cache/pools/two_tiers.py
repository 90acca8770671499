"""A tiny cache on two tiers or three: its configuration, pools of every kind, and bytes that no two slots share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hicache.config import (
    CacheConfig,
    ExecutorKind,
    HostConfig,
    IoBackend,
    Layout,
    StorageConfig,
)
from hicache.pools.buffers import RawBytes, TierPools
from hicache.pools.copy import CopyMethod, PoolCopier
from hicache.pools.device import DevicePools
from hicache.pools.host import HostPools
from hicache.stacks import layer_order, pool_specs
from hicache.testing.hybrid_model import TINY_INDEX_DIM, TINY_MODEL, reshaped
from hicache.transfer.job import CopyJob, Move, PageBatch, StorageJob
from hicache.types import Component, Pool, Slots, StopPolicy, StorageKind, TransferKind

See = Callable[[TierPools, str], RawBytes]

FULL, SWA, MAMBA = (component.value for component in Component)
PAGE_SIZE = 3
DEVICE_PAGES = {FULL: 8, SWA: 7, MAMBA: 6}
HOST_PAGES = {FULL: 9, SWA: 8, MAMBA: 5}
MODEL = reshaped(TINY_MODEL, full_layers=2, swa_layers=3, mamba_layers=1, index_dim=TINY_INDEX_DIM)


def two_tier_config(
    device_layout: Layout = Layout.LAYER_FIRST,
    host_layout: Layout = Layout.PAGE_FIRST,
    dtype: str = "float32",
    device: str = "cpu",
    io_backend: IoBackend | None = None,
) -> CacheConfig:
    """FULL, SWA and MAMBA, with an indexer."""
    return CacheConfig(
        components=(FULL, SWA, MAMBA),
        page_size=PAGE_SIZE,
        capacity_tokens=_tokens(DEVICE_PAGES),
        sliding_window_size=PAGE_SIZE,
        mamba_chunk_size=PAGE_SIZE,
        layout=device_layout,
        device=device,
        model=reshaped(MODEL, dtype=dtype),
        host=HostConfig(
            capacity_tokens=_tokens(HOST_PAGES),
            layout=host_layout,
            load_back_threshold_tokens=0,
            executor=ExecutorKind.STREAMS if device.startswith("cuda") else ExecutorKind.STEPPED,
            io_backend=io_backend,
        ),
    )


def stored_config(stop_policy: StopPolicy = StopPolicy.WAIT_COMPLETE, **options: object) -> CacheConfig:
    """FULL, SWA, MAMBA and an indexer, over the backend `memory`."""
    storage = StorageConfig(
        backend="memory",
        model="tiny",
        options=options,
        prefetch_threshold=1,
        prefetch_timeout_base=1.0,
        prefetch_timeout_per_ki_token=1024.0,
        stop_policy=stop_policy,
        timeout_cap_s=10.0,
        limit_tokens=100,
        executor=ExecutorKind.THREADED,
    )
    return replace(two_tier_config(), storage=storage)


class TwoTiers:
    """The pools of one cache, and jobs between them. Each pool is filled with bytes of its own."""

    def __init__(self, config: CacheConfig) -> None:
        specs = pool_specs(config)
        self.device = DevicePools(config, specs)
        self.host = HostPools(config, specs)
        self.order = layer_order(specs)
        fill(self.device, seed=1)
        fill(self.host, seed=2)

    def copier(self, method: CopyMethod | None = None) -> PoolCopier:
        """A copier between them."""
        return PoolCopier(self.device, self.host, self.order, method)


BACKED_UP = (
    {FULL: ([2, 3, 4], [5, 6, 1]), SWA: ([7], [8]), MAMBA: ([6], [1])},
    {FULL: ([8], [7])},
    {FULL: ([1], [3]), SWA: ([2, 1], [2, 3]), MAMBA: ([2], [5])},
)
"""Device pages and host pages of three parts: runs at one end, at both, at none; not all components in each."""

LOADED = ({FULL: ([7], [1]), SWA: ([1], [8])}, {FULL: ([1, 4, 5], [5, 6, 7]), MAMBA: ([5], [5])})


def job_of(
    kind: TransferKind, parts: Sequence[Mapping[str, tuple[Sequence[int], Sequence[int]]]], number: int = 1
) -> CopyJob:
    """A job over pages that are given by number."""
    moves = [
        {name: Move(pages_of(*device), pages_of(*host)) for name, (device, host) in part.items()} for part in parts
    ]
    return CopyJob(number, kind, tuple(moves))


def storage_job(number: int, kind: StorageKind, *pages: int) -> StorageJob:
    """A job with a batch of so many pages for each of `pages`. The keys name the job, the part and the page."""
    return StorageJob(number, kind, tuple(_batch_of(f"kv/{number}/{part}", n) for part, n in enumerate(pages)), ())


def _batch_of(prefix: str, pages: int) -> PageBatch:
    return PageBatch(Pool.KV, tuple(f"{prefix}/{page}" for page in range(pages)), np.arange(1, pages + 1), slice(None))


def moved(job: CopyJob, tiers: TwoTiers, parts: int, see: See | None = None) -> dict[str, RawBytes]:
    """What the pools of the tier that a job writes to should hold once its first parts have arrived, by pool.

    `see`: how all bytes of a pool are seen, if not by `contents`.
    """
    device, host, seen = tiers.device, tiers.host, see or contents
    source, target = (device, host) if job.kind is TransferKind.BACKUP else (host, device)
    expected = {pool: seen(target, pool) for pool in target.buffers}
    for pool, own in expected.items():
        found = seen(source, pool)
        for part in job.parts[:parts]:
            if move := part.get(source.buffers[pool].spec.owner):
                ends = (move.device, move.host) if source is device else (move.host, move.device)
                own[ends[1]] = found[ends[0]]
    return expected


def _tokens(pages: dict[str, int]) -> dict[str, int]:
    return {name: count * (1 if name == MAMBA else PAGE_SIZE) for name, count in pages.items()}


def pages_of(*numbers: int) -> Slots:
    """Pages by number."""
    return np.array(numbers, dtype=np.int64)


def fill(pools: TierPools, seed: int) -> None:
    """Random bytes in every slot of every pool, those of padding pages too."""
    random = np.random.default_rng(seed)
    for buffers in pools.buffers.values():
        slots = every_slot(pools, buffers.spec.pool)
        for layer in range(buffers.spec.layers):
            buffers.write(slots, layer, random.integers(0, 256, (len(slots), buffers.spec.slot_bytes), dtype=np.uint8))


def every_slot(pools: TierPools, pool: str) -> Slots:
    """All slots of a pool, those of its padding page too."""
    raw = pools.buffers[pool].raw[0]
    return np.arange(raw.shape[0] * raw.shape[2], dtype=np.int64)


def contents(pools: TierPools, pool: str) -> RawBytes:
    """All bytes of a pool, uint8 [pages, layers, bytes of a page in a layer]."""
    buffers = pools.buffers[pool]
    layers = [buffers.read(every_slot(pools, pool), layer) for layer in range(buffers.spec.layers)]
    return np.stack([layer.reshape(buffers.raw[0].shape[0], -1) for layer in layers], axis=1)
