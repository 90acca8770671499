"""The configuration of a tiny cache with a storage tier."""

from __future__ import annotations

from dataclasses import replace

from hicache.config import CacheConfig, ExecutorKind, StorageConfig
from hicache.tests.pools.two_tiers import two_tier_config
from hicache.types import StopPolicy


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
