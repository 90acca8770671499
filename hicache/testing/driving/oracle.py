"""The oracle of a configuration, and what it finds of a prompt in a cache that shows its state."""

from __future__ import annotations

from hicache.config import CacheConfig
from hicache.testing.models.tree import Model
from hicache.testing.snapshot import Snapshot
from hicache.types import Key


def new_oracle(config: CacheConfig) -> Model:
    """The model of an empty cache."""
    return Model(
        components=config.components,
        page_size=config.page_size,
        sliding_window_size=config.sliding_window_size,
        bigram=config.bigram,
    )


def cached_length(key: Key, snapshot: Snapshot, config: CacheConfig) -> int:
    """The number of elements of a prompt that a match finds on both tiers."""
    oracle = new_oracle(config)
    oracle.adopt(snapshot)
    return oracle.expected_match(key).best
