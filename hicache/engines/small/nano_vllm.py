"""NanoVllm: the adapter of nano-vllm's BlockManager, from the source that `--engine-source` names.

It acts around the manager as nano-vllm's scheduler does: it asks `can_allocate` before `allocate` and `can_append`
before `may_append`, it counts the tokens of a sequence that are computed, and it deallocates a sequence that ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.imports import add_installed_bare, import_quietly
from hicache.engines.interface import checkouts, find_interface
from hicache.engines.small.engine_calls import EngineCalls
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.geometry import GeometricConfig, Geometry
from hicache.testing.snapshot import BlockPool, BlockSnapshot, CachedBlock
from hicache.types import SHARED, Component, Key, Pool, Sizes, Slots, Tokens

__getattr__ = checkouts("nanovllm")

FULL = Component.FULL.value
LAYERS, SLOT_BYTES = 2, 8
NO_HASH = -1
"""The hash of a block that caches nothing."""


def prepare_nano_vllm() -> tuple[Any, Any]:
    """The classes BlockManager and Sequence. Raises ImportError if they are not there, or have another interface."""
    find_interface("nanovllm").require("nanovllm")
    add_installed_bare(("nanovllm",))
    (manager,) = import_quietly("nanovllm.engine.block_manager", "BlockManager")
    return (manager, *import_quietly("nanovllm.engine.sequence", "Sequence"))


class NanoVllm(CacheAdapter):
    """Blocks of FULL by requests. Block n of the engine is block n + 1 here, since it uses block 0 for data."""

    interface = 2
    profile = "blocks"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.REQUESTS, Capability.PAGED, Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES),
            *(Capability.TABLES, Capability.COLLISIONS),
        }
    )

    def __init__(self, config: CacheConfig) -> None:
        if config.components != (FULL,) or not isinstance(config, GeometricConfig):
            raise ConfigurationError(f"{config.name}: expected FULL alone, with a geometry")
        if config.page_size == 1:
            raise ConfigurationError(f"{config.name}: nano-vllm never takes a block of 1 token for a decoded token")
        self._manager_type, self._sequence = prepare_nano_vllm()
        self.calls = EngineCalls()
        self._size, self._blocks = config.page_size, config.capacity_tokens[FULL] // config.page_size
        self._sequence.block_size = self._size
        self.calls.note(f"Sequence.block_size = {self._size}")
        self.calls.note(f"manager = BlockManager({self._blocks}, {self._size})")
        self.manager = self.calls.watch(self._manager_type(self._blocks, self._size), "manager")
        self._memory = np.zeros((LAYERS, self._blocks + 1, self._size, SLOT_BYTES), dtype=np.uint8)
        # The engine keeps a hash and the tokens of a block alone. What precedes them is remembered here, by block.
        # The bytes of its prompt, and how many of these end with the block.
        self._prefixes: dict[int, tuple[bytes, int]] = {}

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    @classmethod
    @contextmanager
    def colliding(cls) -> Iterator[None]:
        with patch.object(prepare_nano_vllm()[0], "compute_hash", staticmethod(lambda *_: 1)):
            yield

    # Requests.

    def lookup(self, key: Key) -> int:
        # The engine looks up only what an admission may use, and only if there is room. This is the loop of
        # `can_allocate`, over all blocks.
        manager, chain, found = self.manager, NO_HASH, 0
        for start in range(0, len(key.tokens) // self._size * self._size, self._size):
            tokens = key.tokens[start : start + self._size].tolist()
            chain = self._manager_type.compute_hash(tokens, chain)
            number = manager.hash_to_block_id.get(chain, -1)
            if number == -1 or manager.blocks[number].token_ids != tokens:
                break
            found = start + self._size
        return found

    def admit(self, key: Key) -> Admission | None:
        sequence = self.calls.name(self._sequence(key.tokens.tolist()), "seq")
        self.calls.note(f"{self.calls.told(sequence)} = Sequence({key.tokens.tolist()})")
        cached = self.manager.can_allocate(sequence)
        if cached < 0:
            return None
        self.manager.allocate(sequence, cached)
        return Admission(sequence, self.tables(sequence)[FULL], sequence.num_cached_tokens, None, loading=False)

    def extend(self, request: Any, tokens: Tokens) -> Slots | None:
        # The engine asks before each token. All are asked for first, as a token cannot be taken back.
        length = len(request)
        missing = -(-(length + len(tokens)) // self._size) - len(request.block_table)
        if missing > len(self.manager.free_block_ids):
            return None
        for token in tokens.tolist():
            request.append_token(token)
            self.calls.note(f"{self.calls.told(request)}.append_token({token})")
            assert self.manager.can_append(request), "there are blocks for all tokens"
            self.manager.may_append(request)
        return self.tables(request)[FULL]

    def checkpoint(self, request: Any, computed_tokens: int) -> Slots:
        scheduled, first = computed_tokens - request.num_cached_tokens, request.num_cached_tokens // self._size
        request.num_scheduled_tokens = scheduled
        self.calls.note(f"{self.calls.told(request)}.num_scheduled_tokens = {scheduled}")
        self.manager.hash_blocks(request)
        request.num_cached_tokens, request.num_scheduled_tokens = computed_tokens, 0
        self.calls.note(f"{self.calls.told(request)}.num_cached_tokens = {computed_tokens}")
        tokens = np.array(request.token_ids[:computed_tokens], dtype="<i4")
        prompt = tokens.tobytes()
        for index in range(first, computed_tokens // self._size):
            end = (index + 1) * self._size * tokens.itemsize
            self._prefixes[request.block_table[index]] = prompt, end
        return self.tables(request)[FULL]

    def finish(self, request: Any) -> None:
        self.checkpoint(request, len(request))
        self.manager.deallocate(request)

    def abort(self, request: Any) -> None:
        # The engine has no abort. This is what it does to a sequence that it preempts.
        self.manager.deallocate(request)

    def tables(self, request: Any) -> Mapping[str, Slots]:
        first = (np.array(request.block_table, dtype=np.int64) + 1) * self._size
        return {FULL: (first[:, None] + np.arange(self._size, dtype=np.int64)).reshape(-1)}

    # The model runner.

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self._memory[layer, slots // self._size, slots % self._size] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self._memory[layer, slots // self._size, slots % self._size]
        return data

    # Read-only.

    def block_snapshot(self) -> BlockSnapshot:
        cached = tuple(
            CachedBlock(FULL, block.block_id + 1, SHARED, self._prefix(block.block_id), block.ref_count)
            for block in self.manager.blocks
            if block.hash != NO_HASH
        )
        queue = tuple(number + 1 for number in self.manager.free_block_ids)
        blank = tuple(number for number in queue if self.manager.blocks[number - 1].hash == NO_HASH)
        return BlockSnapshot(cached, (BlockPool((FULL,), self._blocks, blank, queue),))

    def sizes(self) -> Mapping[str, Sizes]:
        manager = self.manager
        blank = sum(manager.blocks[number].hash == NO_HASH for number in manager.free_block_ids)
        evictable, used = len(manager.free_block_ids) - blank, len(manager.used_block_ids)
        return {FULL: Sizes(evictable * self._size, used * self._size, blank * self._size)}

    # Internal.

    def _prefix(self, number: int) -> bytes:
        prompt, end = self._prefixes[number]
        return prompt[:end]


class NanoVllmAnyOrder(NanoVllm):
    """The same, without the check of EVICT-1 after each verb: the order of its free queue hides later failures."""

    departures = frozenset({"EVICT-1"})


def _config(block_tokens: int, pages: int = 12) -> GeometricConfig:
    return GeometricConfig(
        capacity_tokens={FULL: pages * block_tokens},
        page_size=block_tokens,
        components=(FULL,),
        geometry=Geometry({FULL: block_tokens}, duplicates=True),
    )


CONFIGURATIONS: tuple[GeometricConfig, ...] = (_config(2), _config(3), _config(16))
"""The engine itself has blocks of 256 tokens and their multiples. Smaller ones run the same code."""
