"""The adapters of vLLM's KV cache manager, from release 0.29.0 to 0.33.0, by the door of requests.

It makes the calls of vLLM's scheduler: `get_computed_blocks` and `allocate_slots` for an admission, `allocate_slots`
for more tokens, `free` at the end. When tokens are cached is the configuration's choice, as in vLLM: at the
allocation (SCHEDULED), or by `cache_blocks` once they are there (CHUNK, REQUEST), as vLLM does while a connector loads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.interface import require_interface
from hicache.engines.vllm.imports import import_from
from hicache.engines.vllm.requests import VllmRequests
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.geometry import GeometricConfig, Geometry, Publish
from hicache.testing.snapshot import BlockPool, BlockSnapshot, CachedBlock
from hicache.types import Component, Event, EventKind, Key, Namespace, Pool, Sizes, Slots, Tier, Tokens

FULL, SWA, MAMBA = (component.value for component in Component)
LAYERS, SLOT_BYTES = 2, 8

COMPONENT_OF: dict[str, str] = {Pool.KV: FULL, Pool.SWA: SWA, Pool.MAMBA: MAMBA}
"""The component whose slots a pool has."""

MAX_MODEL_TOKENS = 1 << 20
"""Longer than any prompt of the suites."""

PAGES = 12
"""The pages of each component that the configurations have room for."""


@dataclass(slots=True, eq=False)
class Running:
    """A running request: vLLM's own object, its namespace, and how many tokens have slots."""

    request: Any
    namespace: Namespace
    tokens: int


class Vllm0330(CacheAdapter):
    """vLLM 0.33.0: full attention, sliding windows and states beside it, with equal and unequal blocks.

    Slot = block * slots of a block + offset in the block.
    """

    interface = 2
    profile = "blocks"
    version: ClassVar[str] = "0.33.0"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.REQUESTS, Capability.PAGED, Capability.NAMESPACES, Capability.SWA, Capability.MAMBA),
            *(Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES, Capability.TABLES),
            *(Capability.EVENTS, Capability.HASHES),
        }
    )

    def __init__(self, config: CacheConfig) -> None:
        require_interface("vllm", type(self))
        if not isinstance(config, GeometricConfig) or config.sidecars:
            raise ConfigurationError(f"{config.name}: the adapter opens caches with a geometry and no sidecar")
        self._geometry = geometry = config.geometry
        if not (geometry.shared_pool and geometry.duplicates and geometry.recomputed_tokens):
            raise ConfigurationError(f"{config.name}: vLLM has one pool, keeps duplicates, and computes the last token")
        self._components = config.components
        self._blocks = geometry.in_blocks(config.capacity_tokens)[FULL]
        self._hash_block = min(geometry.tokens(name) for name in config.components)
        self._requests = VllmRequests(self._hash_block)
        self._manager = open_manager(config, self._blocks, self._hash_block)
        self._pool = self._manager.block_pool
        width = max(geometry.slots(name) for name in config.components)
        self._memory = np.zeros((LAYERS, self._blocks + 1, width, SLOT_BYTES), dtype=np.uint8)
        self._events: list[Event] = []

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    # Requests.

    def lookup(self, key: Key) -> int:
        request = self._requests.new(key)
        return int(self._manager.get_computed_blocks(request, max_cache_hit_length=len(key.tokens))[1])

    def admit(self, key: Key) -> Admission | None:
        self._manager.new_step_starts()
        request = self._requests.new(key)
        found, cached, request.shared_prefix_boundary = self._manager.get_computed_blocks(request)
        running = Running(request, key.namespace, len(key.tokens))
        if not self._allocate(running, len(key.tokens), cached, found):
            return None
        request.num_computed_tokens = cached
        tables = self.tables(running)
        state = int(tables[MAMBA][-1]) if MAMBA in tables else None
        return Admission(running, tables[FULL], cached, state, loading=False)

    def extend(self, request: Running, tokens: Tokens) -> Slots | None:
        # The slots come first, as for draft tokens: a request of vLLM cannot take back tokens.
        length = request.tokens + len(tokens)
        if not self._allocate(request, length, 0, None):
            return None
        request.tokens = length
        request.request.append_output_token_ids(tokens.tolist())
        self._requests.remember(request.request, request.namespace)
        if self._geometry.publish is Publish.SCHEDULED:
            self._manager.cache_blocks(request.request, length)
        return self.tables(request)[FULL]

    def checkpoint(self, request: Running, computed_tokens: int) -> Slots:
        request.request.num_computed_tokens = computed_tokens
        if self._geometry.publish is Publish.CHUNK:
            self._manager.cache_blocks(request.request, computed_tokens)
        # The first thing that the next `allocate_slots` of the request does.
        self._manager.remove_skipped_blocks(request.request.request_id, computed_tokens)
        return self.tables(request)[FULL]

    def finish(self, request: Running) -> None:
        if self._geometry.publish is not Publish.SCHEDULED:
            if MAMBA in self._components:
                # vLLM's scheduler ends a chunk at each block's end, the suites do not: only the last state is at one.
                self._manager.remove_skipped_blocks(request.request.request_id, request.tokens)
            self._manager.cache_blocks(request.request, request.tokens)
        self._manager.free(request.request)

    def abort(self, request: Running) -> None:
        self._manager.free(request.request)

    def tables(self, request: Running) -> Mapping[str, Slots]:
        numbers = self._manager.get_block_ids(request.request.request_id)
        found = {name: self._slots(name, table) for name, table in zip(self._components, numbers, strict=True)}
        return found | {name: found[name][found[name] != 0] for name in self._components if name == MAMBA}

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
        free = [block.block_id for block in self._pool.free_block_queue.get_all_free_blocks()]
        blank = tuple(number for number in free if self._pool.blocks[number].block_hash is None)
        return BlockSnapshot(tuple(self._cached()), (BlockPool(self._components, self._blocks, blank, tuple(free)),))

    def sizes(self) -> Mapping[str, Sizes]:
        free = self._pool.get_num_free_blocks()
        blank = sum(block.block_hash is None for block in self._pool.free_block_queue.get_all_free_blocks())
        units = {name: self._geometry.slots(name) for name in self._components}
        return {
            name: Sizes((free - blank) * unit, (self._blocks - free) * unit, blank * unit)
            for name, unit in units.items()
        }

    def events(self) -> Sequence[Event]:
        kinds = {"BlockStored": EventKind.STORED, "BlockRemoved": EventKind.REMOVED}
        for event in self._manager.take_events():
            hashes, component = event.block_hashes, self._components[event.group_idx]
            if hashes:
                namespace, _ = self._requests.prefix(hashes[0])
                names = tuple(digest.hex() for digest in hashes)
                self._events.append(Event(kinds[type(event).__name__], Tier.DEVICE, component, namespace, names))
        return self._events

    def page_hashes(self, key: Key) -> Sequence[str]:
        links = self._geometry.alignment // self._hash_block
        return [digest.hex() for digest in self._requests.new(key).block_hashes[links - 1 :: links]]

    # Internal.

    def _allocate(self, running: Running, tokens: int, cached: int, found: Any) -> bool:
        """Give a request slots for so many tokens in all; `cached`: how many of them were `found` just now."""
        request = running.request
        before = self._states(request)
        blocks = self._manager.allocate_slots(
            request,
            tokens - cached - request.num_computed_tokens,
            cached,
            found,
            num_lookahead_tokens=self._geometry.lookahead,
            delay_cache_blocks=self._geometry.publish is not Publish.SCHEDULED,
        )
        if blocks is None:
            return False
        self._move_state(before, self._states(request))
        return True

    def _move_state(self, before: Sequence[int], now: Sequence[int]) -> None:
        """Copy the state to the block in which the request goes on, as vLLM's model runner does before a step."""
        if now and now[-1:] != before[-1:]:
            # A request that was just admitted goes on from the state that it found; block 0 has the initial state.
            source = (*before[-1:], *now[-2:-1], 0)[0]
            self._memory[:, now[-1]] = self._memory[:, source]

    def _states(self, request: Any) -> list[int]:
        """The blocks with states that a request keeps, its own at the end."""
        if MAMBA not in self._components:
            return []
        table = self._manager.get_block_ids(request.request_id)[self._components.index(MAMBA)]
        return [number for number in table if number]

    def _slots(self, component: str, table: Sequence[int]) -> Slots:
        size = self._geometry.slots(component)
        slots = (np.array(table, np.int64)[:, None] * size + np.arange(size, dtype=np.int64)).reshape(-1)
        return np.where(slots < size, 0, slots)

    def _cached(self) -> Iterator[CachedBlock]:
        """The blocks that the hash table leads to, each by the hash that vLLM stored in it."""
        for block in self._pool.blocks:
            entry = block.block_hash
            if entry is not None and self._pool.cached_block_hash_to_block.contain(entry, block.block_id):
                digest, group = split_entry(entry)
                namespace, prefix = self._requests.prefix(digest)
                yield CachedBlock(self._components[group], block.block_id, namespace, prefix, block.ref_cnt)


class Vllm0320(Vllm0330):
    """vLLM 0.32.0. A lookup always leaves out the last token: it is made with one token more."""

    version = "0.32.0"

    def lookup(self, key: Key) -> int:
        longer = dataclasses.replace(key, tokens=np.append(key.tokens, key.tokens[-1:]))
        return int(self._manager.get_computed_blocks(self._requests.new(longer))[1])


class Vllm0310(Vllm0320):
    """vLLM 0.31.0."""

    version = "0.31.0"


class Vllm0300(Vllm0310):
    """vLLM 0.30.0."""

    version = "0.30.0"


class Vllm0290(Vllm0300):
    """vLLM 0.29.0."""

    version = "0.29.0"


def open_manager(config: GeometricConfig, blocks: int, hash_block: int) -> Any:
    """An empty KVCacheManager for a configuration."""
    geometry = config.geometry
    return import_from("vllm.v1.core.kv_cache_manager").KVCacheManager(
        cache_groups(config, blocks),
        max_model_len=MAX_MODEL_TOKENS,
        scheduler_block_size=geometry.alignment,
        hash_block_size=hash_block,
        enable_kv_cache_events=True,
        dcp_world_size=geometry.context_parallel,
    )


def cache_groups(config: GeometricConfig, blocks: int) -> Any:
    """The KVCacheConfig of a configuration: a group for each component, and the padding block beside the others."""
    interface = import_from("vllm.v1.kv_cache_interface")
    import_from("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(None)
    groups = [interface.KVCacheGroupSpec([name], _spec(interface, name, config)) for name in config.components]
    return interface.KVCacheConfig(blocks + 1, [], groups)


def _spec(interface: Any, component: str, config: GeometricConfig) -> Any:
    shape = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.uint8}
    size = config.geometry.block_tokens[component]
    if component == FULL:
        return interface.FullAttentionSpec(block_size=size, **shape)
    if component == MAMBA:
        return interface.MambaSpec(block_size=size, shapes=((1,),), dtypes=(torch.uint8,), mamba_cache_mode="align")
    # The window of vLLM counts the token that reads it.
    window = (config.sliding_window_size or 0) + 1
    return interface.SlidingWindowSpec(block_size=size, sliding_window=window, **shape)


def split_entry(entry: bytes) -> tuple[bytes, int]:
    """The hash and the group in a key of vLLM's hash table."""
    utils = import_from("vllm.v1.core.kv_cache_utils")
    return bytes(utils.get_block_hash(entry)), int(utils.get_group_id(entry))


def _config(block_tokens: Mapping[str, int], window: int | None = None, **rules: object) -> GeometricConfig:
    """A configuration whose pool has room for PAGES pages of each component."""
    geometry = Geometry(block_tokens, shared_pool=True, duplicates=True, **rules)  # type: ignore[arg-type] # by name
    page = geometry.alignment
    blocks = {name: -(-PAGES * page // geometry.tokens(name)) for name in block_tokens}
    config = GeometricConfig(
        capacity_tokens={name: page * 64 * geometry.slots(name) for name in block_tokens},
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
    _config({FULL: 4}, lookahead=2),
    _config({FULL: 4}, context_parallel=2),
    _config({FULL: 4}, publish=Publish.SCHEDULED),
    _config({FULL: 4}, publish=Publish.REQUEST),
    _config({FULL: 1, SWA: 1}, window=3),
    _config({FULL: 4, SWA: 4}, window=6),
    _config({FULL: 4, SWA: 8}, window=8, lookahead=2),
    _config({FULL: 8, SWA: 4}, window=5, publish=Publish.SCHEDULED),
    _config({FULL: 16, SWA: 4}, window=3),
    _config({FULL: 1, MAMBA: 1}, publish=Publish.REQUEST),
    _config({FULL: 4, MAMBA: 4}, publish=Publish.REQUEST),
    _config({FULL: 8, MAMBA: 4}, publish=Publish.REQUEST),
    _config({FULL: 4, SWA: 4, MAMBA: 4}, window=6, publish=Publish.REQUEST),
)
"""Equal and unequal blocks, and each rule with some of them."""
