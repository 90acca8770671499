"""Limits: the hits of simple block-level policies with the same capacity."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.config import CacheConfig
from hicache.testing.replay.lru import lru_hit_tokens
from hicache.testing.replay.optimum import optimal_hit_tokens
from hicache.testing.traces import Trace
from hicache.types import Component


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens hit by block-level LRU with the capacity of the device and of all tiers, and by Belady's optimum.

    The optimum has the capacity of all tiers.
    """

    device_lru_tokens: int
    lru_tokens: int
    optimal_tokens: int


def limits(trace: Trace, config: CacheConfig) -> Limits:
    """Compute the limits. Streams the trace three times, and once more with a host tier."""
    device_tokens = all_tokens = config.capacity_tokens[Component.FULL]
    device_lru = lru = lru_hit_tokens(trace, config.page_size, device_tokens)
    if config.host is not None:
        all_tokens += config.host.capacity_tokens[Component.FULL]
        lru = lru_hit_tokens(trace, config.page_size, all_tokens)
    return Limits(device_lru, lru, optimal_hit_tokens(trace, config.page_size, all_tokens))
