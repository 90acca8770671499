"""overwrite_free_slots: overwrite the bytes of free device slots, so that a stale read cannot give the right answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter
from hicache.types import NO_SLOTS, Component, Pool, Slots

T = TypeVar("T")

NOISE = 0xFF
"""The value of every byte: NaN in every dtype of a model, so that an answer that depends on it is NaN."""


def overwrite_free_slots(adapter: CacheAdapter, config: CacheConfig) -> None:
    """Write NOISE to every device slot that can be allocated."""
    slots = np.concatenate([NO_SLOTS, *_all_of(lambda: adapter.allocate(config.page_size))])
    for pool in (Pool.KV, *map(Pool, config.sidecars)):
        _overwrite(adapter, pool, slots)
    if Component.SWA in config.components:
        _overwrite(adapter, Pool.SWA, adapter.partners(slots))
    adapter.free(slots)
    if Component.MAMBA in config.components:
        states = _all_of(adapter.allocate_state)
        _overwrite(adapter, Pool.MAMBA, np.array(states, dtype=np.int64))
        for state in states:
            adapter.free_state(state)


def _all_of(take: Callable[[], T | None]) -> list[T]:
    """Everything that can be allocated."""
    taken: list[T] = []
    while (one := take()) is not None:
        taken.append(one)
    return taken


def _overwrite(adapter: CacheAdapter, pool: Pool, slots: Slots) -> None:
    # A pool without layers has no bytes: KV, where all layers are sliding.
    for layer in range(adapter.layers(pool)):
        adapter.write(pool, slots, layer, np.full((len(slots), adapter.slot_bytes(pool)), NOISE, dtype=np.uint8))
