"""PromptTransfer: back up a prompt, evict it from the device and load it back; and a plain copy of as many bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from hicache.config import CacheConfig, ExecutorKind, HostConfig, Layout, ModelShape, WritePolicy
from hicache.testing.adapter import CacheAdapter
from hicache.testing.hybrid_model import reshaped
from hicache.types import SHARED, Handle, Key, LoadBack, MatchResult

from .synthetic_tree import FULL, SLIM_MODEL, insert, offer, random_tokens, spacious

PAGE_SIZE = 16
PAGE_AND_LAYER_BYTES = 32 * 1024
FLOAT_BYTES = 4

WIDE_MODEL = reshaped(
    SLIM_MODEL, full_layers=8, kv_heads=2, head_dim=PAGE_AND_LAYER_BYTES // (PAGE_SIZE * 2 * 2 * FLOAT_BYTES)
)
"""Eight layers with 32 KiB of keys and values per page: copying dominates the time."""


@dataclass(frozen=True, slots=True)
class LayoutPair:
    """The layouts of the device and of the host."""

    device: Layout
    host: Layout

    def __str__(self) -> str:
        return f"{self.device.value} and {self.host.value}"

    def config(self, pages: int, model: ModelShape, executor: ExecutorKind) -> CacheConfig:
        """A cache with room for `pages` pages on each tier, with write_through."""
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


class PromptTransfer:
    """Backs up and loads back one prompt, which fills the cache. `conformance` checks the bytes, this does not.

    `size_bytes`: of its keys and values.
    """

    def __init__(self, cache: CacheAdapter, pages: int, model: ModelShape) -> None:
        self.cache = cache
        self._pages = pages
        self._random = np.random.default_rng(pages)
        self._key: Key | None = None
        self._handle: Handle = None
        (kv,) = model.pools[0].buffers
        self.size_bytes = pages * PAGE_SIZE * model.pools[0].layers * prod(kv.shape) * FLOAT_BYTES
        self._source, self._target = [np.ones(self.size_bytes, dtype=np.uint8) for _ in range(2)]
        self._fill()

    def scatter(self) -> None:
        """Free the pages of both tiers in random order, so that the pages of a later prompt are not consecutive."""
        self._evict()
        keys = self._prompts(self._pages, PAGE_SIZE)
        for key in keys:
            insert(self.cache, offer(self.cache, key))
        self.cache.drain()
        for number in self._random.permutation(len(keys)):
            self.cache.match(keys[number], chunked=False)

    def copy_plain(self) -> None:
        """Copy as many bytes as the prompt has between two contiguous arrays."""
        np.copyto(self._target, self._source)

    def insert_new(self) -> None:
        """Replace the cached prompt by a new one, whose backup is queued."""
        if self._key is not None:
            self._evict()
        (self._key,) = self._prompts(1, self._pages * PAGE_SIZE)
        insert(self.cache, offer(self.cache, self._key))

    def back_up(self) -> None:
        """Run the backup to its acknowledgement."""
        self.cache.drain()

    def evict_from_device(self) -> None:
        """Evict the prompt from the device."""
        self.cache.evict(FULL, self._pages * PAGE_SIZE)
        found = self._match()
        assert found.host_hit_length == self._pages * PAGE_SIZE, (
            f"expected {self._pages} pages on the host, got {found}"
        )
        self._handle = found.best_match

    def pages_on_device(self) -> int:
        """How many pages of the prompt are on the device."""
        return len(self._match().device_indices) // PAGE_SIZE

    def begin_load(self) -> LoadBack:
        """Start the load-back of the prompt."""
        loading = self.cache.load_back(self._handle, quota=None)
        assert loading is not None, "expected room for the prompt on an empty device"
        return loading

    def load(self) -> None:
        """Load the prompt back, from the start to the claim."""
        self.finish_load(self.begin_load())

    def finish_load(self, loading: LoadBack) -> None:
        """Wait for a load-back, and claim it."""
        self.cache.drain()
        self.cache.claim(loading.ticket)

    def _fill(self) -> None:
        # Reading memory that was never written costs nothing. This load writes all of the device.
        self.insert_new()
        self.back_up()
        self.evict_from_device()
        self.load()

    def _match(self) -> MatchResult:
        assert self._key is not None, "expected an inserted prompt, got None"
        return self.cache.match(self._key, chunked=False)

    def _evict(self) -> None:
        self.cache.evict(FULL, self._pages * PAGE_SIZE)
        freed = self.cache.evict_host(FULL, self._pages * PAGE_SIZE).freed[FULL]
        assert freed == self._pages * PAGE_SIZE, f"expected {self._pages} pages freed on the host, got {freed} tokens"

    def _prompts(self, count: int, tokens: int) -> list[Key]:
        return [Key(own, SHARED) for own in random_tokens(self._random, count, tokens)]
