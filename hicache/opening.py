"""open_cache: a cache with all that its configuration names: executors, a backend, the machine's own time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from hicache.cache import UnifiedRadixCache
from hicache.clock import WallClock
from hicache.config import CacheConfig, StorageConfig
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.storage.registry import open_backend
from hicache.tiers.storage_tier import StorageWorld
from hicache.transfer.executors.opening import open_executor, open_storage_executor


def open_cache(config: CacheConfig, groups: Mapping[str, Group] | None = None) -> UnifiedRadixCache:
    """Open an empty cache; close it in the end. Raises ConfigurationError for what cannot be served.

    `groups`: by axis, the ranks that share the tree. Each opens its cache, or none has one: then RankError names who
    could not.
    """
    agreement = Agreement(groups or {})
    return agreement.together(lambda: _open(config, agreement), UnifiedRadixCache.close, "open")


def _open(config: CacheConfig, agreement: Agreement) -> UnifiedRadixCache:
    opens_executor = partial(open_executor, config.host.executor) if config.host else None
    world = _world(config.storage) if config.storage else None
    return UnifiedRadixCache(config, opens_executor, world, agreement)


def _world(config: StorageConfig) -> StorageWorld:
    return StorageWorld(
        open_backend=lambda scope: open_backend(config.backend, scope, config.extra.options),
        open_executor=partial(open_storage_executor, config.executor),
        clock=WallClock(),
    )
