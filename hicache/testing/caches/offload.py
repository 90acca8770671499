"""Adapters of caches of chunks, beside a small engine without a prefix cache of its own.

ChunkCacheAdapter has the engine and the transfers, OffloadCacheAdapter the reference of the profile beside them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
from unittest.mock import patch

import numpy as np

from hicache.config import CacheConfig, ExecutorKind, HostConfig, StorageConfig
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes, Pending
from hicache.testing.caches.offload_cache import (
    Bytes,
    Chunk,
    ChunkCache,
    Digest,
    OffloadCache,
    OffloadCacheConfig,
    OffloadTransfer,
    sha256,
)
from hicache.testing.configurations import USUAL_LAYOUTS
from hicache.testing.geometry import GeometricConfig, Geometry, Publish
from hicache.testing.hybrid_model import TINY_MODEL
from hicache.testing.snapshot import BlockPool, BlockSnapshot, ChunkView, OffloadView, PoolView, TransferView
from hicache.testing.storage.scripted import BACKEND, Store, store_of
from hicache.types import Component, Key, Pool, Sizes, Slots, Tokens

FULL = Component.FULL.value
LAYERS, SLOT_BYTES = 2, 8

PAGES, HOST_CHUNKS = 12, 8
"""The room of the configurations: on the device in units of hits, on the host in chunks."""


class DeviceBlocks:
    """The engine's pool of blocks. A block in a transfer is freed when the transfer has ended."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self.blocks = blocks
        self.size = block_tokens
        self.free = list(range(1, blocks + 1))
        self.leaving: set[int] = set()
        self.memory = np.zeros((LAYERS, (blocks + 1) * block_tokens, SLOT_BYTES), dtype=np.uint8)

    def read(self, layer: int, slots: Slots) -> Bytes:
        data: Bytes = self.memory[layer, slots]
        return data

    def write(self, layer: int, slots: Slots, data: Bytes) -> None:
        self.memory[layer, slots] = data

    def take(self, count: int) -> list[int] | None:
        """Take blocks; None if there are too few."""
        if count > len(self.free):
            return None
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def leave(self, blocks: Sequence[int], busy: set[int]) -> None:
        """Free blocks, those in a transfer once it has ended."""
        self.leaving.update(blocks)
        self.collect(busy)

    def collect(self, busy: set[int]) -> None:
        """Free the blocks that were left and that no transfer has any more."""
        done = sorted(self.leaving - busy)
        self.leaving.difference_update(done)
        self.free.extend(done)

    def slots(self, blocks: Sequence[int]) -> Slots:
        """One slot for each token of the blocks: block * tokens of a block + offset."""
        first = np.array(blocks, dtype=np.int64) * self.size
        return (first[:, None] + np.arange(self.size, dtype=np.int64)).reshape(-1)


class StoredObjects:
    """The storage tier of the cache: a scripted store, which tests damage. It returns a damaged object unchanged."""

    def __init__(self, store: Store, scope: str) -> None:
        self._store = store
        self._scope = scope

    def get(self, name: str) -> bytes | None:
        return self._store.objects.get(self.key(name))

    def set(self, name: str, content: bytes) -> bool:
        return self._store.set(self.key(name), content) != "refused"

    def remove(self, name: str) -> None:
        self._store.objects.pop(self.key(name), None)

    def key(self, name: str) -> str:
        """The key of an object in the store."""
        return f"{self._scope}/{name}"


@dataclass(slots=True, eq=False)
class OffloadRequest:
    """A running request. `load`: the retrieval that it waits for."""

    key: Key
    blocks: list[int]
    load: OffloadTransfer | None = None


class ChunkCacheAdapter(CacheAdapter):
    """FULL in chunks beside the device. The engine gives every request blocks of its own.

    An admission retrieves what it finds into fresh blocks; the end of a request stores. With another executor than the
    stepped one each transfer is complete when the verb returns. A subclass opens the cache, and calls it.
    """

    interface = 2
    profile = "offload"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.REQUESTS, Capability.PAGED, Capability.NAMESPACES),
            *(Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES, Capability.TABLES),
            *(Capability.HOST, Capability.STEPPED),
        }
    )
    cache: ChunkCache

    def __init__(self, config: CacheConfig) -> None:
        if not isinstance(config, GeometricConfig) or config.geometry.chunk_tokens is None or config.host is None:
            raise ConfigurationError(f"{config.name}: the adapter opens caches with chunks and a host")
        self._geometry = geometry = config.geometry
        if geometry.publish is Publish.SCHEDULED:
            raise ConfigurationError(f"{config.name}: tokens are stored when they are computed")
        self._is_stepped = config.host.executor is ExecutorKind.STEPPED
        self.device = DeviceBlocks(geometry.in_blocks(config.capacity_tokens)[FULL], geometry.slots(FULL))
        self._capacity = config.host.capacity_tokens[FULL]
        opened = OffloadCacheConfig(config.geometry.chunk_tokens, self._capacity, LAYERS, SLOT_BYTES)
        self.cache = self._open(config, opened)

    @abstractmethod
    def _open(self, config: CacheConfig, opened: OffloadCacheConfig) -> ChunkCache:
        """Open the cache. Raises ConfigurationError when it does not support the configuration."""

    @abstractmethod
    def _store(self, request: OffloadRequest, tokens: int) -> None:
        """Store the first tokens of a request, which were computed."""

    # Requests.

    def resume(self, request: OffloadRequest) -> Admission | None:
        if request.load is not None and not request.load.is_applied:
            return None
        return self._admission(request, self._arrived(request), loading=False)

    def extend(self, request: OffloadRequest, tokens: Tokens) -> Slots | None:
        missing = self._blocks_for(len(request.key.tokens) + len(tokens)) - len(request.blocks)
        blocks = self.device.take(missing)
        if blocks is None:
            return None
        request.blocks += blocks
        request.key = Key(np.concatenate((request.key.tokens, tokens)), request.key.namespace)
        return self.device.slots(request.blocks)

    def checkpoint(self, request: OffloadRequest, computed_tokens: int) -> Slots:
        if self._geometry.publish is Publish.CHUNK:
            self._store(request, computed_tokens)
        return self.device.slots(request.blocks)

    def finish(self, request: OffloadRequest) -> None:
        self._store(request, len(request.key.tokens))
        self.device.leave(request.blocks, self._busy())

    def abort(self, request: OffloadRequest) -> None:
        self.device.leave(request.blocks, self._busy())

    def tables(self, request: OffloadRequest) -> Mapping[str, Slots]:
        return {FULL: self.device.slots(request.blocks)}

    # Transfers.

    def step(self) -> None:
        self.cache.step()
        self.device.collect(self._busy())

    def drain(self) -> None:
        for transfer in self.cache.pending():
            self.cache.complete(transfer)
        self.step()

    def pending(self) -> Sequence[Pending]:
        # Each part of a transfer is a chunk, and can fail by itself.
        return [Pending(one, one.kind, len(one.parts), LAYERS, one.layers_done) for one in self.cache.pending()]

    def advance(self, ticket: OffloadTransfer) -> None:
        self.cache.advance(ticket)

    def complete(self, ticket: OffloadTransfer) -> None:
        self.cache.complete(ticket)

    def fail(self, ticket: OffloadTransfer, parts_done: int) -> None:
        self.cache.fail(ticket, parts_done)

    # The model runner.

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.device.write(layer, slots, data)

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        return self.device.read(layer, slots)

    def read_host(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self.cache.memory[layer, slots]
        return data

    # Read-only.

    def block_snapshot(self) -> BlockSnapshot:
        device = BlockPool((FULL,), self.device.blocks, tuple(self._free_blocks()))
        chunks = tuple(_chunk_view(chunk) for chunk in self.cache.chunks())
        transfers = tuple(self._transfer_view(one) for one in self.cache.transfers())
        return BlockSnapshot((), (device,), OffloadView(chunks, PoolView(self._capacity, self.cache.free()), transfers))

    def sizes(self) -> Mapping[str, Sizes]:
        free = len(self._free_blocks()) * self.device.size
        return {FULL: Sizes(0, self.device.blocks * self.device.size - free, free)}

    def host_sizes(self) -> Mapping[str, Sizes]:
        held = [chunk for chunk in self.cache.chunks() if chunk.slots is not None]
        evictable = sum(self.cache.config.chunk_tokens for chunk in held if not chunk.pins)
        free = len(self.cache.free())
        return {FULL: Sizes(evictable, self._capacity - evictable - free, free)}

    # Internal.

    def _blocks_for(self, tokens: int) -> int:
        return self._geometry.blocks_of(tokens)[FULL]

    def _admitted(self, request: OffloadRequest, found: int) -> Admission:
        """What an admission answers that found so many tokens, and has started to retrieve them."""
        self._complete_unstepped()
        waits = request.load is not None and not request.load.is_applied
        return self._admission(request, found if waits else self._arrived(request), loading=waits)

    def _admission(self, request: OffloadRequest, cached: int, *, loading: bool) -> Admission:
        return Admission(request, self.device.slots(request.blocks), cached, None, loading=loading)

    def _arrived(self, request: OffloadRequest) -> int:
        return 0 if request.load is None else request.load.arrived

    def _complete_unstepped(self) -> None:
        """Complete all transfers in this verb, unless a test steps them."""
        if not self._is_stepped:
            self.drain()

    def _busy(self) -> set[int]:
        """The blocks that a transfer reads or writes."""
        held = [self._held(one) for one in self.cache.transfers()]
        return {int(slot) // self.device.size for slots in held for slot in slots}

    def _free_blocks(self) -> Sequence[int]:
        """The free blocks of the device."""
        return self.device.free

    def _held(self, transfer: OffloadTransfer) -> Slots:
        """The slots of the device that a transfer keeps until it is applied."""
        return np.concatenate([part.device for part in transfer.parts])

    def _transfer_view(self, transfer: OffloadTransfer) -> TransferView:
        host = [
            np.empty(0, dtype=np.int64),
            *(part.chunk.slots for part in transfer.parts if part.chunk.slots is not None),
        ]
        return TransferView(transfer.kind, {FULL: self._held(transfer)}, {FULL: np.concatenate(host)})


class OffloadCacheAdapter(ChunkCacheAdapter):
    """OffloadCache: chunks on the host and in storage. An admission looks the prompt up."""

    capabilities = ChunkCacheAdapter.capabilities | {Capability.COLLISIONS, Capability.STORAGE}
    cache_type: ClassVar[type[OffloadCache]] = OffloadCache
    cache: OffloadCache
    digest: ClassVar[Digest] = staticmethod(sha256)

    def _open(self, config: CacheConfig, opened: OffloadCacheConfig) -> OffloadCache:
        store = store_of(config)
        self._objects = None
        if config.storage is not None and store is not None:
            self._objects = StoredObjects(
                store, f"{config.storage.model}/{config.storage.model_fingerprint}/kv/chunk{opened.chunk_tokens}"
            )
        return self.cache_type(opened, self.device, self._objects, self._digest)

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
        return self.cache.lookup(key.tokens, key.namespace).tokens

    def admit(self, key: Key) -> Admission | None:
        limit = len(key.tokens) - self._geometry.recomputed_tokens
        found = self.cache.lookup(key.tokens, key.namespace, limit)
        self.cache.pin(found)
        blocks = self.device.take(self._blocks_for(len(key.tokens)))
        if blocks is None:
            self.cache.unpin(found)
            return None
        request = OffloadRequest(key, blocks)
        if found.chunks:
            request.load = self.cache.retrieve(found, self.device.slots(blocks)[: found.tokens])
        return self._admitted(request, found.tokens)

    def storage_keys(self, pool: str, key: Key) -> Sequence[str]:
        names = [self.cache.object_name(one) for one in self.cache.identities(key.tokens, key.namespace)]
        return [self._objects.key(name) for name in names] if self._objects is not None else names

    # Internal.

    def _digest(self, data: bytes) -> bytes:
        # Looked up for each call: `colliding` may replace the function while the cache is open.
        return type(self).digest(data)

    def _store(self, request: OffloadRequest, tokens: int) -> None:
        self.cache.store(request.key.tokens[:tokens], request.key.namespace, self.device.slots(request.blocks)[:tokens])
        self._complete_unstepped()


def _chunk_view(chunk: Chunk) -> ChunkView:
    _, namespace, prefix = chunk.identity
    slots = None if chunk.slots is None else chunk.slots.copy()
    return ChunkView(namespace, prefix, slots, chunk.is_stored, chunk.pins)


def chunk_config(
    block: int, chunk: int, *, is_stepped: bool, is_stored: bool = False, **rules: object
) -> GeometricConfig:
    """A configuration whose device has room for PAGES units of hits, and whose host has room for HOST_CHUNKS chunks."""
    executor, (layout, host_layout) = ExecutorKind.STEPPED if is_stepped else ExecutorKind.THREADED, USUAL_LAYOUTS
    rules = {"publish": Publish.REQUEST, **rules}
    geometry = Geometry({FULL: block}, duplicates=True, chunk_tokens=chunk, **rules)  # type: ignore[arg-type] # by name
    store = {"store": f"offload/{geometry.name}/{executor.value}"}
    storage = StorageConfig(BACKEND, "tiny", store, prefetch_threshold=0, model_fingerprint="of tests")
    return GeometricConfig(
        capacity_tokens={FULL: PAGES * geometry.alignment},
        page_size=geometry.alignment,
        host=HostConfig({FULL: HOST_CHUNKS * chunk}, host_layout, load_back_threshold_tokens=0, executor=executor),
        layout=layout,
        storage=storage if is_stored else None,
        model=TINY_MODEL if is_stored else None,
        geometry=geometry,
    )


CONFIGURATIONS: tuple[GeometricConfig, ...] = tuple(
    config
    for is_stepped in (False, True)
    for config in (
        chunk_config(1, 3, is_stepped=is_stepped),
        chunk_config(4, 4, is_stepped=is_stepped, publish=Publish.CHUNK),
        chunk_config(4, 16, is_stepped=is_stepped),
        chunk_config(4, 8, is_stepped=is_stepped, recomputed_tokens=0),
        chunk_config(4, 8, is_stepped=is_stepped, lookahead=2, publish=Publish.CHUNK),
        chunk_config(4, 8, is_stepped=is_stepped, is_stored=True),
    )
)
"""Chunks of one block and of several, with each rule, with stepped transfers and with others."""
