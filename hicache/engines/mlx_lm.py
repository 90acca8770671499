"""MlxLm0322: the adapter of mlx-lm's LRUPromptCache beside an engine, by the door of requests.

It acts as mlx-lm's server does: `fetch_nearest_cache` at an admission returns a copy of the longest cached prompt,
which the request extends while it computes, and `insert_cache` at the end of the request gives that copy to the cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig, ExecutorKind, HostConfig
from hicache.engines.imports import add_installed_bare, import_quietly, installed_release
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.caches.offload import DeviceBlocks
from hicache.testing.geometry import GeometricConfig, Geometry, Publish
from hicache.types import Component, Key, Pool, Slots, Tokens

FULL = Component.FULL.value
LAYERS, SLOT_BYTES = 2, 8
"""The keys and the values of a model of one layer."""

RELEASE = "0.32.2"
BARE = ("mlx_lm", "mlx_lm.models")


def prepare_mlx_lm() -> tuple[Any, Any]:
    """The classes LRUPromptCache and KVCache. Raises ImportError without this release of mlx-lm."""
    if (found := installed_release("mlx-lm")) != RELEASE:
        raise ImportError(f"the adapter drives mlx-lm {RELEASE}, installed is {found}: pip install --no-deps mlx-lm")
    add_installed_bare(BARE)
    cache: tuple[Any, Any] = import_quietly("mlx_lm.models.cache", "LRUPromptCache", "KVCache")
    return cache


@dataclass(slots=True, eq=False)
class Running:
    """A running request: its prompt, its slots on the device, and the engine's cache with the first of its tokens."""

    key: Key
    slots: list[int]
    cache: Any


class MlxLm0322(CacheAdapter):
    """Whole prompts, of which each has memory of its own. A namespace is the model, by which the engine has a trie."""

    interface = 2
    profile = "offload"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.REQUESTS, Capability.NAMESPACES, Capability.BYTES, Capability.TABLES}
    )

    def __init__(self, config: CacheConfig) -> None:
        if not isinstance(config, GeometricConfig) or config.geometry.chunk_tokens != 1 or config.host is None:
            raise ConfigurationError(f"{config.name}: expected chunks of one token, and a host")
        prompt_cache, kv_cache = prepare_mlx_lm()
        # The engine allocates 256 tokens at a time. Here one at a time, so that what it counts is what it caches.
        self._kv_cache = type("KVCache", (kv_cache,), {"step": 1})
        self.cache = prompt_cache(max_size=PROMPTS, max_bytes=config.host.capacity_tokens[FULL] * LAYERS * SLOT_BYTES)
        self.device = DeviceBlocks(config.capacity_tokens[FULL], 1)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    # Requests.

    def lookup(self, key: Key) -> int:
        # A prompt that goes on finds all of a longer one, and does not end the search at its own length.
        tokens = [*key.tokens.tolist(), -1]
        return len(tokens) - len(self.cache.fetch_nearest_cache(key.namespace, tokens)[1])

    def admit(self, key: Key) -> Admission | None:
        tokens = key.tokens.tolist()
        found, rest = self.cache.fetch_nearest_cache(key.namespace, tokens)
        slots = self.device.take(len(tokens))
        if slots is None:
            return None
        request = Running(key, slots, [self._kv_cache()] if found is None else found)
        if found is not None:
            for layer, data in enumerate(found[0].keys_and_values()):
                computed = np.array(data)[0, 0]
                self.device.write(layer, np.array(slots[: len(computed)]), computed)
        return Admission(request, self.tables(request)[FULL], len(tokens) - len(rest), None, loading=False)

    def extend(self, request: Running, tokens: Tokens) -> Slots | None:
        slots = self.device.take(len(tokens))
        if slots is None:
            return None
        request.slots += slots
        request.key = Key(np.concatenate((request.key.tokens, tokens)), request.key.namespace)
        return self.tables(request)[FULL]

    def checkpoint(self, request: Running, computed_tokens: int) -> Slots:
        (cache,), slots = request.cache, self.tables(request)[FULL]
        if (start := cache.size()) < computed_tokens:
            mx = import_quietly("mlx.core")
            data = [self.device.read(layer, slots[start:computed_tokens])[None, None] for layer in range(LAYERS)]
            cache.update_and_fetch(*map(mx.array, data))
        return slots

    def finish(self, request: Running) -> None:
        self.checkpoint(request, len(request.key.tokens))
        self.cache.insert_cache(request.key.namespace, request.key.tokens.tolist(), request.cache)
        self.device.leave(request.slots, set())

    def abort(self, request: Running) -> None:
        self.device.leave(request.slots, set())

    def tables(self, request: Running) -> Mapping[str, Slots]:
        return {FULL: self.device.slots(request.slots)}

    # The model runner.

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.device.write(layer, slots, data)

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        return self.device.read(layer, slots)


PROMPTS = 10
"""The prompts that the engine keeps by default."""


def _config(tokens: int) -> GeometricConfig:
    return GeometricConfig(
        capacity_tokens={FULL: 24},
        page_size=1,
        components=(FULL,),
        host=HostConfig({FULL: tokens}, load_back_threshold_tokens=0, executor=ExecutorKind.THREADED),
        geometry=Geometry({FULL: 1}, duplicates=True, publish=Publish.REQUEST, chunk_tokens=1),
    )


CONFIGURATIONS: tuple[GeometricConfig, ...] = (_config(64), _config(16))
