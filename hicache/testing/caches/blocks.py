"""BlockCacheAdapter: the block cache under the suites, by requests alone; a template for caches of hashed blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar
from unittest.mock import patch

import numpy as np

from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.caches.block_cache import (
    NULL_BLOCK,
    BlockCache,
    BlockCacheConfig,
    BlockRequest,
    Digest,
    Group,
    sha256,
)
from hicache.testing.geometry import GeometricConfig, Geometry, Publish
from hicache.testing.snapshot import BlockPool, BlockSnapshot, CachedBlock
from hicache.types import Component, Event, Key, Pool, Sizes, Slots, Tier, Tokens

FULL, SWA, MAMBA = (component.value for component in Component)
LAYERS, SLOT_BYTES = 2, 8

COMPONENT_OF: dict[str, str] = {Pool.KV: FULL, Pool.SWA: SWA, Pool.MAMBA: MAMBA}
"""The component whose slots a pool has; the cache has no indexer."""

PAGES = 12
"""The pages of each component that the configurations have room for, and as many states as pages."""


class BlockCacheAdapter(CacheAdapter):
    """Hybrids of FULL, SWA and MAMBA on one pool of blocks, in several geometries.

    Slot = block * slots of a block + offset in the block. The component that has a block owns its bytes.
    """

    interface = 2
    profile = "blocks"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.REQUESTS, Capability.PAGED, Capability.NAMESPACES, Capability.SWA, Capability.MAMBA),
            *(Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES, Capability.TABLES),
            *(Capability.EVENTS, Capability.HASHES, Capability.COLLISIONS),
            *(Capability.PREEMPTION, Capability.PINS, Capability.MEDIA),
        }
    )
    cache_type: ClassVar[type[BlockCache]] = BlockCache
    digest: ClassVar[Digest] = staticmethod(sha256)

    def __init__(self, config: CacheConfig) -> None:
        if not isinstance(config, GeometricConfig) or config.sidecars:
            raise ConfigurationError(f"{config.name}: the adapter opens caches with a geometry and no sidecar")
        self._geometry = geometry = config.geometry
        if not geometry.shared_pool or not geometry.duplicates:
            raise ConfigurationError(f"{config.name}: the cache has one pool, and keeps duplicates")
        self._components = config.components
        self._blocks = geometry.in_blocks(config.capacity_tokens)[FULL]
        # The window of a group counts the token that reads it.
        windows = {SWA: (config.sliding_window_size or 0) + 1}
        groups = tuple(
            Group(Component(name), geometry.block_tokens[name], windows.get(name, 0)) for name in config.components
        )
        opened = BlockCacheConfig(
            self._blocks + 1,
            groups,
            context_parallel=geometry.context_parallel,
            lookahead=geometry.lookahead,
            hit_whole_prompt=not geometry.recomputed_tokens,
            publish=geometry.publish,
        )
        self.cache = self.cache_type(opened, digest=self._digest, copy_state=self._copy_state)
        width = max(geometry.slots(name) for name in config.components)
        self._memory = np.zeros((LAYERS, self._blocks + 1, width, SLOT_BYTES), dtype=np.uint8)
        self._events: list[Event] = []

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    @classmethod
    @contextmanager
    def colliding(cls) -> Iterator[None]:
        with patch.object(cls, "digest", staticmethod(lambda _: bytes(1))):
            yield

    # Requests.

    def lookup(self, key: Key) -> int:
        return self.cache.match(key.identity(), key.namespace, limit=len(key.tokens))

    def admit(self, key: Key) -> Admission | None:
        request = self.cache.admit(key.identity(), key.namespace)
        return None if request is None else self._admission(request)

    def resume(self, request: BlockRequest) -> Admission | None:
        return self._admission(request) if self.cache.resume(request) else None

    def preempt(self, request: BlockRequest) -> None:
        self.cache.preempt(request)

    def _admission(self, request: BlockRequest) -> Admission:
        state = self.cache.state(request)
        return Admission(request, self.tables(request)[FULL], request.cached_tokens, state, loading=False)

    def extend(self, request: BlockRequest, tokens: Tokens) -> Slots | None:
        return self.tables(request)[FULL] if self.cache.extend(request, tokens) else None

    def checkpoint(self, request: BlockRequest, computed_tokens: int) -> Slots:
        self.cache.checkpoint(request, computed_tokens)
        return self.tables(request)[FULL]

    def finish(self, request: BlockRequest) -> None:
        self.cache.finish(request)

    def abort(self, request: BlockRequest) -> None:
        self.cache.abort(request)

    def pin(self, key: Key) -> list[int]:
        return self.cache.pin(key.identity(), key.namespace)

    def unpin(self, receipt: list[int]) -> None:
        self.cache.unpin(receipt)

    def tables(self, request: BlockRequest) -> Mapping[str, Slots]:
        found: dict[str, Slots] = {}
        for group, component in enumerate(self._components):
            if component == MAMBA:
                states = [number for number in request.tables[group] if number != NULL_BLOCK]
                found[component] = np.array(states, dtype=np.int64)
            else:
                slots = self.cache.slots(request, group)
                found[component] = np.where(slots < self._geometry.slots(component), 0, slots)
        return found

    # The model runner.

    def layers(self, pool: str) -> int:
        return LAYERS if COMPONENT_OF.get(pool) in self._components else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        block, offset = np.divmod(slots, self._geometry.slots(COMPONENT_OF[pool]))
        self._memory[layer, block, offset] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        block, offset = np.divmod(slots, self._geometry.slots(COMPONENT_OF[pool]))
        data: PageBytes = self._memory[layer, block, offset]
        return data

    # Read-only.

    def block_snapshot(self) -> BlockSnapshot:
        state = self.cache.snapshot()
        cached = tuple(
            CachedBlock(
                self._components[block.group], block.id, block.namespace, block.prefix, block.references, block.pins
            )
            for block in state.blocks
            if block.group is not None and block.namespace is not None and block.prefix is not None
        )
        blank = tuple(number for number in state.free if state.blocks[number].prefix is None)
        return BlockSnapshot(cached, (BlockPool(self._components, self._blocks, blank, state.free),))

    def sizes(self) -> Mapping[str, Sizes]:
        state = self.cache.snapshot()
        blank = sum(state.blocks[number].prefix is None for number in state.free)
        evictable, used = len(state.free) - blank, self._blocks - len(state.free)
        units = {component: self._geometry.slots(component) for component in self._components}
        return {component: Sizes(evictable * unit, used * unit, blank * unit) for component, unit in units.items()}

    def events(self) -> Sequence[Event]:
        for event in self.cache.take_events():
            component, blocks = self._components[event.group], (event.digest.hex(),)
            self._events.append(Event(event.kind, Tier.DEVICE, component, event.namespace, blocks))
        return self._events

    def page_hashes(self, key: Key) -> Sequence[str]:
        links = self._geometry.alignment // self.cache.config.hash_block
        return [digest.hex() for digest in self.cache.digests(key.identity(), key.namespace)[links - 1 :: links]]

    def _digest(self, data: bytes) -> bytes:
        # Looked up for each call: `colliding` may replace the function while the cache is open.
        return type(self).digest(data)

    def _copy_state(self, source: int, target: int) -> None:
        self._memory[:, target] = self._memory[:, source]


def _config(block_tokens: Mapping[str, int], window: int | None = None, **rules: object) -> GeometricConfig:
    """A configuration whose pool has room for PAGES pages of each component, and for as many states."""
    geometry = Geometry(block_tokens, shared_pool=True, duplicates=True, **rules)  # type: ignore[arg-type] # by name
    page = geometry.alignment
    blocks = {name: -(-PAGES * page // geometry.tokens(name)) for name in block_tokens} | (
        {MAMBA: PAGES} if MAMBA in block_tokens else {}
    )
    step = page * 64
    config = GeometricConfig(
        capacity_tokens={name: step * (1 if name == MAMBA else geometry.tokens(name)) for name in block_tokens},
        page_size=page,
        components=tuple(block_tokens),
        sliding_window_size=window,
        mamba_chunk_size=block_tokens.get(MAMBA),
        events=True,
        geometry=geometry,
    )
    return config.with_blocks(sum(blocks.values()))


CONFIGURATIONS: tuple[GeometricConfig, ...] = (
    _config({FULL: 1}),
    _config({FULL: 3}),
    _config({FULL: 16}),
    _config({FULL: 4}, recomputed_tokens=0),
    _config({FULL: 4}, lookahead=2),
    _config({FULL: 4}, context_parallel=2),
    _config({FULL: 4}, publish=Publish.SCHEDULED),
    _config({FULL: 4}, publish=Publish.REQUEST),
    _config({FULL: 1, SWA: 1}, window=3),
    _config({FULL: 4, SWA: 4}, window=6),
    _config({FULL: 4, SWA: 8}, window=8, lookahead=2),
    _config({FULL: 8, SWA: 4}, window=5, publish=Publish.SCHEDULED),
    _config({FULL: 4, SWA: 2}, window=3, context_parallel=2, publish=Publish.REQUEST),
    _config({FULL: 1, MAMBA: 1}),
    _config({FULL: 4, MAMBA: 4}),
    _config({FULL: 4, MAMBA: 4}, context_parallel=2),
    _config({FULL: 4, MAMBA: 8}, publish=Publish.SCHEDULED),
    _config({FULL: 4, MAMBA: 8}, recomputed_tokens=0),
    _config({FULL: 8, MAMBA: 4}, publish=Publish.REQUEST),
    _config({FULL: 1, SWA: 1, MAMBA: 1}, window=2),
    _config({FULL: 4, SWA: 4, MAMBA: 4}, window=6),
    _config({FULL: 4, SWA: 8, MAMBA: 8}, window=11, recomputed_tokens=0),
    _config({FULL: 4, SWA: 8, MAMBA: 16}, window=11, lookahead=2),
    _config({FULL: 4, SWA: 4, MAMBA: 4}, window=6, context_parallel=2, publish=Publish.SCHEDULED),
)
"""Equal and unequal blocks, whose hits end at 1 to 16 tokens, and each rule with some of them."""
