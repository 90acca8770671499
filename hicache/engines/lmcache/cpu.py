"""LMCache's cache of chunks in host memory, LocalCPUBackend of release 0.5.6, beside an engine.

The back end decides what is there and what is evicted, and its allocator where it is. It gets the calls of LMCache's
engine: `batched_contains` with pins and `touch_cache` for a look-up, `batched_get_blocking`, `ref_count_down` and
`unpin` for a retrieval; `allocate` for each chunk that the request has not stored yet, `batched_submit_put_task` and
`ref_count_down` for a store. LMCache's token database makes the keys; a namespace is given as the tags of a request.
The bytes are copied here, layer by layer, to the addresses that the allocator gives, where LMCache needs a GPU.

LMCache's engine copies the bytes of a store within one call. Here tests step this call, and can make it fail: what did
not arrive is given back and not put.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.lmcache.storage import lmcache_class, lmcache_version
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.testing.adapter import Admission
from hicache.testing.caches.offload import ChunkCacheAdapter, OffloadRequest, chunk_config
from hicache.testing.caches.offload_cache import Chunk, ChunkCache, Device, OffloadCacheConfig, OffloadTransfer
from hicache.testing.geometry import GeometricConfig, Publish
from hicache.types import Key, Namespace, Slots, TransferKind

MODULE = "lmcache.v1"


@dataclass(slots=True, eq=False)
class ObjectTransfer(OffloadTransfer):
    """A transfer, with LMCache's key and memory object of each part."""

    keys: Sequence[Any] = ()
    objects: Sequence[Any] = ()


class LmcacheChunkCache(ChunkCache):
    """LocalCPUBackend over an allocator with room for whole chunks."""

    def __init__(self, config: OffloadCacheConfig, device: Device) -> None:
        super().__init__(config, device)
        chunk = (1, config.layers, config.chunk_tokens, config.slot_bytes)
        # An allocation is rounded up to a power of two, so that each chunk begins at a multiple of it.
        self._chunk_bytes = 1 << (int(np.prod(chunk)) - 1).bit_length()
        settings = lmcache_class(f"{MODULE}.config", "LMCacheEngineConfig").from_defaults(
            chunk_size=config.chunk_tokens, save_unfull_chunk=False
        )
        metadata = lmcache_class(f"{MODULE}.metadata", "LMCacheMetadata")
        named = metadata(
            "model", 1, 1, 0, 0, torch.uint8, (config.layers, 1, config.chunk_tokens, 1, config.slot_bytes)
        )
        self._tokens: Any = lmcache_class(f"{MODULE}.token_database", "ChunkedTokenDatabase")(settings, named)
        allocator = lmcache_class(f"{MODULE}.memory_allocators.mixed_memory_allocator", "MixedMemoryAllocator")
        size = config.host_tokens // config.chunk_tokens * self._chunk_bytes
        self._allocator: Any = allocator(size, align_bytes=self._chunk_bytes)
        backend = lmcache_class(f"{MODULE}.storage_backend.local_cpu_backend", "LocalCPUBackend")
        self.backend: Any = backend(settings, memory_allocator=self._allocator)
        # LMCache's engine opens it: without it nothing can be pinned.
        lmcache_class(f"{MODULE}.pin_monitor", "PinMonitor").GetOrCreate(settings)
        self._shape = torch.Size(chunk)
        # What each key stands for: the namespace, and all tokens up to the end of the chunk.
        self._prefixes: dict[Any, tuple[Namespace, bytes]] = {}

    # What LMCache's engine calls.

    def keys(self, key: Key, tokens: int | None = None) -> list[Any]:
        """LMCache's keys of the whole chunks of a prompt, of its first `tokens` tokens."""
        space = key.namespace
        tags = {"lora": space.lora, "salt": space.salt, "tenant": space.tenant}
        asked = {f"lmcache.tag.{name}": text for name, text in tags.items() if text is not None}
        named = self._tokens.process_tokens(key.tokens[:tokens].tolist(), request_configs=asked)
        keys = [name for _, _, name in named]
        data, size = key.tokens.astype("<i4").tobytes(), self.config.chunk_tokens * 4
        for number, name in enumerate(keys, 1):
            self._prefixes.setdefault(name, (space, data[: number * size]))
        return keys

    def found(self, keys: Sequence[Any], *, pin: bool) -> int:
        """How many chunks at the start of a prompt are there. `pin`: they are to be retrieved, which is a use."""
        count = int(self.backend.batched_contains(list(keys), pin))
        if pin:
            self.backend.touch_cache()
        return count

    def unpin(self, keys: Sequence[Any]) -> None:
        """Give up what was found."""
        for key in keys:
            self.backend.unpin(key)

    def retrieve(self, keys: Sequence[Any], device: Slots) -> ObjectTransfer:
        """Start to copy chunks that were found and pinned to slots of the engine."""
        return self._begin(TransferKind.LOAD, keys, self.backend.batched_get_blocking(list(keys)), device)

    def store(self, keys: Sequence[Any], device: Slots) -> ObjectTransfer | None:
        """Start to store chunks, up to one for which there is no room."""
        objects: list[Any] = []
        kind = lmcache_class(f"{MODULE}.memory_management", "MemoryFormat").KV_2LTD
        for _ in keys:
            one = self.backend.allocate(self._shape, torch.uint8, kind, busy_loop=False)
            if one is None:
                break
            objects.append(one)
        return self._begin(TransferKind.BACKUP, keys[: len(objects)], objects, device) if objects else None

    # Read-only.

    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(self._chunk(key, one) for key, one in self.backend.hot_cache.items())

    def free(self) -> Slots:
        blocks = vars(self._allocator.pin_allocator.address_manager)[
            "_explicit_list"
        ]  # LMCache shows it in no other way
        starts = [
            start for block in blocks for start in range(block.start, block.start + block.size, self._chunk_bytes)
        ]
        return np.concatenate([self._at(start) for start in starts] or [np.empty(0, dtype=np.int64)])

    # Internal.

    def _begin(self, kind: TransferKind, keys: Sequence[Any], objects: Sequence[Any], device: Slots) -> ObjectTransfer:
        chunks = [self._chunk(key, one) for key, one in zip(keys, objects, strict=True)]
        transfer = ObjectTransfer(kind, self._parts(chunks, device), keys=keys, objects=objects)
        self._start(transfer)
        return transfer

    def _apply(self, transfer: OffloadTransfer) -> None:
        assert isinstance(transfer, ObjectTransfer), "the cache starts no other transfers"
        if transfer.kind is TransferKind.LOAD:
            transfer.arrived = self._arrived(transfer) * self.config.chunk_tokens
        else:
            arrived = [at for at, part in enumerate(transfer.parts) if not part.has_failed]
            self.backend.batched_submit_put_task(
                [transfer.keys[at] for at in arrived], [transfer.objects[at] for at in arrived]
            )
        for one in transfer.objects:
            one.ref_count_down()
        if transfer.kind is TransferKind.LOAD:
            self.unpin(transfer.keys)

    def _chunk(self, key: Any, one: Any) -> Chunk:
        digest = int(key.chunk_hash).to_bytes(8, "little", signed=True)
        return Chunk((digest, *self._prefixes[key]), self._at(one.meta.address), pins=one.meta.pin_count)

    def _at(self, address: int) -> Slots:
        """The slots of the chunk at an address."""
        return self._slots(address // self._chunk_bytes)


@dataclass(slots=True, eq=False)
class StoredRequest(OffloadRequest):
    """A running request. `stored`: how many of its chunks were found, or given to a store."""

    stored: int = field(kw_only=True)


class LmcacheCpu056(ChunkCacheAdapter):
    """LMCache 0.5.6: chunks in host memory, the least recently used evicted first."""

    version: ClassVar[str] = "0.5.6"
    cache: LmcacheChunkCache

    def _open(self, config: CacheConfig, opened: OffloadCacheConfig) -> LmcacheChunkCache:
        if lmcache_version() != self.version:
            raise ImportError(f"{type(self).__name__} drives lmcache {self.version}, installed is {lmcache_version()}")
        if self._geometry.publish is not Publish.CHUNK or config.storage is not None:
            raise ConfigurationError(f"{config.name}: LMCache stores what is computed, here without a tier below")
        return LmcacheChunkCache(opened, self.device)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    def close(self) -> None:
        self.cache.backend.close()

    def lookup(self, key: Key) -> int:
        return self.cache.found(self.cache.keys(key), pin=False) * self.cache.config.chunk_tokens

    def admit(self, key: Key) -> Admission | None:
        size = self.cache.config.chunk_tokens
        keys = self.cache.keys(key, len(key.tokens) - self._geometry.recomputed_tokens)
        found = self.cache.found(keys, pin=True)
        blocks = self.device.take(self._blocks_for(len(key.tokens)))
        if blocks is None:
            self.cache.unpin(keys[:found])
            return None
        request = StoredRequest(key, blocks, stored=found)
        if found:
            request.load = self.cache.retrieve(keys[:found], self.device.slots(blocks)[: found * size])
        return self._admitted(request, found * size)

    def _store(self, request: OffloadRequest, tokens: int) -> None:
        assert isinstance(request, StoredRequest), "the adapter admits no other requests"
        size, first = self.cache.config.chunk_tokens, request.stored
        keys = self.cache.keys(request.key, tokens)[first:]
        request.stored += len(keys)
        self.cache.store(keys, self.device.slots(request.blocks)[first * size : (first + len(keys)) * size])
        self._complete_unstepped()


class LmcacheCpuAnyEviction056(LmcacheCpu056):
    """The same, with a departure from the clause that a chunk which is stored twice breaks: it shows what is behind."""

    departures = frozenset({"EVICT-1"})


CONFIGURATIONS: tuple[GeometricConfig, ...] = tuple(
    chunk_config(
        block,
        chunk,
        is_stepped=is_stepped,
        publish=Publish.CHUNK,
        lookahead=lookahead,
        recomputed_tokens=recomputed,
    )
    for is_stepped in (False, True)
    for block, chunk, lookahead, recomputed in ((1, 3, 0, 1), (4, 4, 0, 1), (4, 16, 0, 1), (4, 8, 2, 1), (4, 8, 0, 0))
)
"""Chunks of one block and of several, with each rule, with stepped transfers and with others."""
