"""The pools of a configuration, by the component whose slots they have, and the entries that they have for slots."""

from __future__ import annotations

import numpy as np

from hicache.config import CacheConfig, PoolShape
from hicache.types import COMPONENT_POOL, Component, Slots


def pools_of(config: CacheConfig, component: str) -> tuple[str, ...]:
    """The pools that have a component's slots, in the order of the model; without a model the component's own pool."""
    if component not in config.components:
        return ()
    if config.model is None:
        return (COMPONENT_POOL[component].value,)
    return tuple(pool.name for pool in config.model.pools if pool.follows.component == component)


def component_of(config: CacheConfig) -> dict[str, str]:
    """The component whose slots each pool has: first those of FULL, then those of SWA and of MAMBA."""
    return {pool: component.value for component in Component for pool in pools_of(config, component)}


def shape_of(config: CacheConfig, pool: str) -> PoolShape | None:
    """A pool as the model has it; None without a model."""
    return None if config.model is None else next(one for one in config.model.pools if one.name == pool)


def is_shared(config: CacheConfig, pool: str) -> bool:
    """Whether all ranks of a tensor-parallel group hold the same bytes: with MLA, if they divide no buffer of it."""
    shape = shape_of(config, pool)
    is_whole = shape is not None and all(buffer.tp_axis is None for buffer in shape.buffers)
    return is_whole and config.model is not None and config.model.is_mla


def tokens_per_row(config: CacheConfig, pool: str) -> int:
    """How many slots have one row of a pool: those of an entry, and of a page where an entry is for several pages."""
    shape = shape_of(config, pool)
    return 1 if shape is None else min(shape.tokens_per_entry, config.page_size)


def rows(config: CacheConfig, pool: str, slots: Slots) -> Slots:
    """The rows of a pool for the slots of whole pages: slot // tokens of a row, each row once, in order."""
    tokens = tokens_per_row(config, pool)
    return slots[::tokens] // tokens


def with_entry(config: CacheConfig, pool: str, pages: Slots) -> Slots:
    """Which of these pages, counted from the start of their prefix, have an entry: all, or the last of each group."""
    shape = shape_of(config, pool)
    group = 1 if shape is None else shape.pages_per_entry(config.page_size)
    return np.flatnonzero((pages + 1) % group == 0)
