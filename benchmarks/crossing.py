"""Crossing: a prompt that is copied to the host, leaves the device and comes back, beside a plain copy of its bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from hicache.config import CacheConfig, ExecutorKind, HostConfig, Layout, ModelShape, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.hybrid_model import reshaped
from hicache.types import SHARED, Handle, Key, LoadBack, MatchResult

from .prompts import insert, offer, random_tokens
from .scale import FULL, SLIM_MODEL, spacious

PAGE_SIZE = 16
PAGE_AND_LAYER_BYTES = 32 * 1024
FLOAT_BYTES = 4

WIDE_MODEL = reshaped(
    SLIM_MODEL, full_layers=8, kv_heads=2, head_dim=PAGE_AND_LAYER_BYTES // (PAGE_SIZE * 2 * 2 * FLOAT_BYTES)
)
"""Eight layers with 32 KiB of keys and values a page: what is measured is the copying."""


@dataclass(frozen=True, slots=True)
class Route:
    """The layouts at the two ends of a transfer."""

    device: Layout
    host: Layout

    def __str__(self) -> str:
        return f"{self.device.value} and {self.host.value}"

    def config(self, pages: int, model: ModelShape, executor: ExecutorKind) -> CacheConfig:
        """A cache with room for so many pages on each tier, which backs up what is inserted."""
        config = spacious((FULL,), PAGE_SIZE, pages * PAGE_SIZE)
        host = HostConfig(
            capacity_tokens=config.capacity_tokens,
            layout=self.host,
            write_policy=WritePolicy.WRITE_THROUGH,
            selective_hits=1,
            load_back_threshold_tokens=0,
            executor=executor,
        )
        return replace(config, layout=self.device, model=model, host=host)


class Crossing:
    """A prompt that fills the cache, on its way there and back. Nobody looks at the bytes: `conformance` does."""

    def __init__(self, cache: CacheAdapter, pages: int, model: ModelShape) -> None:
        self.cache = cache
        self._pages = pages
        self._random = np.random.default_rng(pages)
        self._key: Key | None = None
        self._handle: Handle = None
        (kv,) = model.pools[0].buffers
        page_bytes = PAGE_SIZE * model.pools[0].layers * prod(kv.shape) * FLOAT_BYTES
        self._source, self._target = [np.ones(pages * page_bytes, dtype=np.uint8) for _ in range(2)]
        self._fill()

    def scatter(self) -> None:
        """Free the pages of both tiers in random order, so that those of a prompt follow each other nowhere."""
        self._leave()
        keys = self._prompts(self._pages, PAGE_SIZE)
        for key in keys:
            insert(self.cache, offer(self.cache, key))
        self.cache.drain()
        for number in self._random.permutation(len(keys)):
            self.cache.match(keys[number], chunked=False)

    def copy_plainly(self) -> None:
        """Copy as many bytes as the prompt has from one run of memory to another."""
        np.copyto(self._target, self._source)

    def renew(self) -> None:
        """Insert a prompt that was never seen in place of what is there; its backup is due."""
        if self._key is not None:
            self._leave()
        (self._key,) = self._prompts(1, self._pages * PAGE_SIZE)
        insert(self.cache, offer(self.cache, self._key))

    def back_up(self) -> None:
        """From the decision to the acknowledgement."""
        self.cache.drain()

    def demote(self) -> None:
        """Let the prompt leave the device."""
        self.cache.evict(FULL, self._pages * PAGE_SIZE)
        found = self._match()
        assert found.host_hit_length == self._pages * PAGE_SIZE, f"{self._pages} pages are on the host alone: {found}"
        self._handle = found.best_match

    def pages_on_device(self) -> int:
        """How much of the prompt is on the device."""
        return len(self._match().device_indices) // PAGE_SIZE

    def begin_load(self) -> LoadBack:
        """Ask for the prompt."""
        loading = self.cache.load_back(self._handle, quota=None)
        assert loading is not None, "the device is empty, so there is room for the prompt"
        return loading

    def load(self) -> None:
        """From the wish to the claim."""
        loading = self.begin_load()
        self.cache.drain()
        self.cache.claim(loading.ticket)

    def _fill(self) -> None:
        # Memory that was never written costs nothing to read. A load writes all of the device.
        self.renew()
        self.back_up()
        self.demote()
        self.load()

    def _match(self) -> MatchResult:
        assert self._key is not None, "no prompt was inserted"
        return self.cache.match(self._key, chunked=False)

    def _leave(self) -> None:
        self.cache.evict(FULL, self._pages * PAGE_SIZE)
        freed = self.cache.evict_host(FULL, self._pages * PAGE_SIZE).freed[FULL]
        assert freed == self._pages * PAGE_SIZE, f"the host held {self._pages} pages, {freed} tokens were freed"

    def _prompts(self, count: int, tokens: int) -> list[Key]:
        return [Key(own, SHARED) for own in random_tokens(self._random, count, tokens)]
