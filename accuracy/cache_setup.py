"""CacheSetup: one model over its own cache, which can clear its device, or reopen over the same storage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
import transformers

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.driving.pools import pools_of, rows
from hicache.types import NO_SLOTS, Component, Pool, Slots

from .engine.cache_config import device_config, with_host, with_storage
from .engine.engine import Engine
from .engine.served_model import ServedModel
from .families import FAMILIES

PAGE, CHUNK = 16, 32
ONE_CHUNK_TOKENS = 1024
"""A chunk size that is larger than every prompt."""

TOKENS, STATES = 2048, 96

OpenCache = Callable[[CacheConfig], CacheAdapter]
T = TypeVar("T")


@lru_cache(maxsize=4)
def served(family: str, dtype: torch.dtype, device: str) -> ServedModel:
    """The model of a family, inspected once for several tests. Skips the test where transformers lacks the family."""
    if not FAMILIES[family].is_known:
        pytest.skip(f"transformers {transformers.__version__} has no {FAMILIES[family].model_type}")
    return ServedModel.of(FAMILIES[family].open(dtype, device))


class CacheSetup:
    """`config`: the configuration of the cache. `adapter`: the cache that is open."""

    def __init__(self, model: ServedModel, config: CacheConfig, open_cache: OpenCache) -> None:
        self.model = model
        self.config = config
        self._open_cache = open_cache
        self.adapter = open_cache(config)

    def engine(self, chunk_tokens: int, *, rereads: bool = False) -> Engine:
        """An engine over the cache that is open."""
        return Engine(self.model, self.adapter, self.config, chunk_tokens=chunk_tokens, rereads=rereads)

    def clear_device(self) -> None:
        """Evict everything from the device after it was copied to the host, and overwrite the bytes of the device."""
        self.adapter.drain()
        for component, tokens in self.config.capacity_tokens.items():
            self.adapter.evict(component, tokens)
        overwrite_free_slots(self.adapter, self.config)

    def restart(self) -> None:
        """Close the cache after everything was stored, and open an empty one over the same storage."""
        with self.closed():
            pass

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Close the cache after everything was stored; at the end of the context open an empty one."""
        self.adapter.drain()
        self.adapter.close()
        yield
        self.adapter = self._open_cache(self.config)


def on_device(model: ServedModel, page_size: int, chunk_tokens: int, *, tokens: int = TOKENS) -> CacheConfig:
    """A cache on the device alone, by default with room for everything that a test computes."""
    device = model.runner.device.type
    return device_config(
        model.layout, page_size=page_size, chunk_tokens=chunk_tokens, tokens=tokens, states=STATES, device=device
    )


def on_host(model: ServedModel) -> CacheConfig:
    """The same with a host tier that is written through."""
    config = on_device(model, PAGE, CHUNK)
    return with_host(config, tokens=TOKENS, states=STATES, policy=WritePolicy.WRITE_THROUGH)


def in_storage(model: ServedModel, root: Path) -> CacheConfig:
    """The same with file storage below the host tier."""
    runner, options = model.runner, {"root": str(root)}
    return with_storage(
        on_host(model), backend="file", options=options, model=runner.model_type, fingerprint=runner.fingerprint
    )


NOISE = 0xFF
"""The value of every byte: NaN in every dtype of a model, so that an answer that depends on it is NaN."""


def overwrite_free_slots(adapter: CacheAdapter, config: CacheConfig) -> None:
    """Write NOISE to every free device slot, so that a stale read cannot give the right answer."""
    slots = np.concatenate([NO_SLOTS, *_all_of(lambda: adapter.allocate(config.page_size))])
    for pool in pools_of(config, Component.FULL):
        _overwrite(adapter, pool, rows(config, pool, slots))
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


def _overwrite(adapter: CacheAdapter, pool: str, slots: Slots) -> None:
    # A pool without layers has no bytes: KV, where all layers are sliding.
    for layer in range(adapter.layers(pool)):
        adapter.write(pool, slots, layer, np.full((len(slots), adapter.slot_bytes(pool)), NOISE, dtype=np.uint8))
