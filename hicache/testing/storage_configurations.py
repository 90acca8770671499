"""The storage tier of the standard configurations: stop policies, on a storage backend that the test controls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hicache.config import CacheConfig, ExecutorKind, StorageConfig, WritePolicy
from hicache.testing.host_configurations import ALL, ALONE, FULL, KINDS, Tiny, with_host
from hicache.testing.storage.scripted import BACKEND
from hicache.types import Pool, StopPolicy

THRESHOLD_PAGES = 2
"""The smallest number of pages that is prefetched, in the configuration with a threshold."""

LIMIT_PAGES = 8
"""The number of pages that prefetches may have in flight."""

TIMEOUT_BASE_S = 1.0
TIMEOUT_PER_PAGE_S = 0.5
TIMEOUT_CAP_S = 3.0
"""Limits the timeout of prefetches of more than four pages."""

QUICK_STORAGE = frozenset(
    {
        "full/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped",
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-stepped/ScriptedStorage-wait_complete-stepped",
        "full+swa+mamba+indexer/page16/lru/write_through-page_first-threaded/ScriptedStorage-wait_complete-threaded",
    }
)
"""The names of the configurations of a quick run."""


def storage_configurations(tiny: Tiny) -> Iterator[CacheConfig]:
    """Each component beside FULL; then stop policies, write_back, threads and a threshold with some of the kinds."""
    for kind in (*KINDS, ((FULL,), (Pool.INDEXER.value,))):
        yield with_storage(with_host(tiny(kind, 16)))
    yield with_storage(with_host(tiny(ALONE, 1)))
    yield with_storage(with_host(tiny(ALL, 1), policy=WritePolicy.WRITE_BACK))
    for kind in (ALONE, ALL):
        yield with_storage(with_host(tiny(kind, 16)), stop_policy=StopPolicy.BEST_EFFORT)
        yield with_storage(with_host(tiny(kind, 16)), stop_policy=StopPolicy.TIMEOUT)
    threaded = with_host(tiny(ALL, 16), executor=ExecutorKind.THREADED)
    yield with_storage(threaded, executor=ExecutorKind.THREADED)
    yield with_storage(with_host(tiny(ALONE, 3)), threshold_pages=THRESHOLD_PAGES)


def with_storage(
    config: CacheConfig,
    *,
    stop_policy: StopPolicy = StopPolicy.WAIT_COMPLETE,
    executor: ExecutorKind = ExecutorKind.STEPPED,
    threshold_pages: int = 0,
) -> CacheConfig:
    """Add a storage tier, with its own in-memory store, to a configuration with a host tier."""
    storage = StorageConfig(
        backend=BACKEND,
        model="tiny",
        options={"store": f"{config.name}/{stop_policy.value}"},
        prefetch_threshold=threshold_pages * config.page_size,
        prefetch_timeout_base=TIMEOUT_BASE_S,
        prefetch_timeout_per_ki_token=TIMEOUT_PER_PAGE_S * 1024 / config.page_size,
        stop_policy=stop_policy,
        timeout_cap_s=TIMEOUT_CAP_S,
        limit_tokens=LIMIT_PAGES * config.page_size,
        executor=executor,
    )
    return replace(config, storage=storage)
