"""BlockCacheAdapter: the block cache under the suites, by requests alone; a template for caches of hashed blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar
from unittest.mock import patch

import numpy as np

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.block_cache import BlockCache, BlockCacheConfig, BlockView, Digest, Group, Request, sha256
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.types import Component, Key, Pool, Sizes, Slots, Tokens

FULL = Component.FULL.value
LAYERS, SLOT_BYTES = 2, 8


class BlockCacheAdapter(CacheAdapter):
    """FULL in blocks of page_size tokens. A slot is a block's number times its tokens, plus the offset in the block."""

    interface = 2
    profile = "blocks"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.REQUESTS, Capability.PAGED, Capability.NAMESPACES),
            *(Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES, Capability.COLLISIONS),
        }
    )
    cache_type: ClassVar[type[BlockCache]] = BlockCache
    digest: ClassVar[Digest] = staticmethod(sha256)

    def __init__(self, config: CacheConfig) -> None:
        if config.components != (FULL,) or config.sidecars or config.bigram or config.host is not None:
            raise ConfigurationError(f"{config.name}: the adapter opens caches of FULL on the device alone")
        self._page = config.page_size
        self._capacity = config.capacity_tokens[FULL]
        blocks = self._capacity // self._page + 1
        groups = (Group(Component.FULL, self._page),)
        self.cache = self.cache_type(BlockCacheConfig(blocks, groups), digest=self._digest)
        self._pool = np.zeros((LAYERS, blocks * self._page, SLOT_BYTES), dtype=np.uint8)

    @classmethod
    @contextmanager
    def colliding(cls) -> Iterator[None]:
        with patch.object(cls, "digest", staticmethod(lambda _: bytes(1))):
            yield

    # Requests.

    def lookup(self, key: Key) -> int:
        return self.cache.match(key.tokens, key.namespace, limit=len(key.tokens))

    def admit(self, key: Key) -> Admission | None:
        request = self.cache.admit(key.tokens, key.namespace)
        if request is None:
            return None
        return Admission(request, self.cache.slots(request, 0), request.cached_tokens, None, loading=False)

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return self.cache.slots(request, 0) if self.cache.extend(request, tokens) else None

    def checkpoint(self, request: Request, computed_tokens: int) -> Slots:
        self.cache.checkpoint(request, computed_tokens)
        return self.cache.slots(request, 0)

    def finish(self, request: Request) -> None:
        self.cache.finish(request)

    def abort(self, request: Request) -> None:
        self.cache.abort(request)

    # The model runner.

    def layers(self, pool: Pool) -> int:
        return LAYERS if pool is Pool.KV else 0

    def slot_bytes(self, pool: Pool) -> int:
        return SLOT_BYTES

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        self._pool[layer, slots] = data

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self._pool[layer, slots]
        return data

    # Read-only.

    def snapshot(self) -> Snapshot:
        """One node for each cached block. Of several copies of its parent, the first one stands for the parent."""
        state = self.cache.snapshot()
        cached = [block for block in state.blocks if block.prefix is not None]
        cached.sort(key=lambda block: len(block.prefix or b""))
        row_of: dict[tuple[object, bytes], int] = {}
        for row, block in enumerate(cached):
            row_of.setdefault((block.namespace, block.prefix or b""), row)
        nodes = tuple(self._node(block, row_of) for block in cached)
        blank = [number for number in state.free if state.blocks[number].prefix is None]
        return Snapshot(nodes, {FULL: PoolView(self._capacity, self._slots_of(blank))}, None, None)

    def sizes(self) -> Mapping[str, Sizes]:
        state = self.cache.snapshot()
        cached = [block for block in state.blocks if block.prefix is not None]
        protected = sum(block.references > 0 for block in cached) * self._page
        evictable = len(cached) * self._page - protected
        return {FULL: Sizes(evictable, protected, len(state.free) * self._page - evictable)}

    def _digest(self, data: bytes) -> bytes:
        # Looked up for each call: `colliding` may replace the function while the cache is open.
        return type(self).digest(data)

    def _node(self, block: BlockView, row_of: Mapping[tuple[object, bytes], int]) -> NodeView:
        assert block.prefix is not None, f"block {block.id} is cached"
        assert block.namespace is not None, f"block {block.id} is cached"
        segment_bytes = self._page * np.dtype(np.int32).itemsize
        end = len(block.prefix) // segment_bytes * self._page
        return NodeView(
            parent=row_of.get((block.namespace, block.prefix[:-segment_bytes]), -1),
            namespace=block.namespace,
            segment=block.prefix[-segment_bytes:],
            start=end - self._page,
            end=end,
            slots={FULL: self._slots_of([block.id])},
            locks={FULL: block.references},
            hits=None,
        )

    def _slots_of(self, blocks: list[int]) -> Slots:
        first = np.array(blocks, dtype=np.int64) * self._page
        return (first[:, None] + np.arange(self._page, dtype=np.int64)).reshape(-1)
