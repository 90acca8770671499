"""Stats: what a cache says of itself at one moment, for those that expose it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hicache.config import CacheConfig
from hicache.metrics import Counters
from hicache.storage.base import Breaker
from hicache.types import Tier


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Slots of a component on a tier, in tokens (states for MAMBA)."""

    tier: Tier
    component: str
    free: int
    used: int


@dataclass(frozen=True, slots=True)
class StorageStats:
    """The storage tier. `name`: of the backend. `errors`: calls that failed, by verb. `abandoned`: how often it was.

    `breaker`: None for a backend that has none.
    """

    name: str
    errors: Mapping[str, int]
    abandoned: int
    breaker: Breaker | None


@dataclass(frozen=True, slots=True)
class Stats:
    """A cache. `queues`: by the name of a queue, how many jobs wait and how many run. `storage`: None without one."""

    config: CacheConfig
    counters: Counters
    pools: Sequence[PoolStats]
    queues: Mapping[str, tuple[int, int]]
    storage: StorageStats | None
