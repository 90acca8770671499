"""vLLM's tiers below host memory, TieringOffloadingManager of release 0.33.0, behind its offloading connector.

The manager and the tier of host memory are vLLM's own, and get the calls of `vllm_connector.py`. The tier below is of
the kit, in the interface that vLLM has for tiers of others, `SecondaryTierManager`: the scripted store of the
configuration, which tests damage. Its jobs are complete when the step ends that submits them.

- A look-up of the connector moves chunks up, which takes room on the host. That of the suites, which changes nothing,
  asks both tiers without the connector.
- vLLM's scheduler lets a request wait while its chunks move up. Here an admission takes the steps itself.
- An object that is not whole is not found.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.vllm.connector import (
    Blocks,
    ConnectorCache,
    JobTransfer,
    OffloadingConnectorCache,
    Running,
    VllmConnector0330,
)
from hicache.engines.vllm.imports import import_from
from hicache.engines.vllm.offload import OFFLOAD
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Capability
from hicache.testing.caches.offload import StoredObjects, chunk_config
from hicache.testing.caches.offload_cache import Chunk, Device, OffloadCacheConfig
from hicache.testing.geometry import GeometricConfig, Publish
from hicache.testing.storage.scripted import store_of
from hicache.types import Key

NUMBERS = itertools.count(1)
"""A number for each cache that is opened."""

TRIES = 3
"""How often a look-up is made again after a step: one in which chunks move up, and one after it."""


class TieredCache(OffloadingConnectorCache):
    """TieringOffloadingManager over CPUPrimaryTierOffloadingManager and a store of objects."""

    def __init__(self, config: OffloadCacheConfig, device: Device, engine: Blocks, objects: StoredObjects) -> None:
        self.objects = objects
        super().__init__(config, device, engine)

    # What a scheduler does.

    def lookup(self, key: Key) -> int:
        count = 0
        ready = {digest for digest, _, _ in self._kept.ready()}
        for digest in self.digests(key):
            if digest not in ready and not self.is_below(digest):
                break
            count += 1
        return count * self.config.chunk_tokens

    def schedule(self, running: Running | None = None, count: int = 0) -> list[JobTransfer]:
        started = super().schedule(running, count)
        while self.connector.manager.has_pending_work():
            started += super().schedule()
        return started

    # Read-only.

    def chunks(self) -> tuple[Chunk, ...]:
        found = super().chunks()
        for chunk in found:
            chunk.is_stored = self.is_below(chunk.identity[0])
        on_host = {chunk.identity[0] for chunk in found}
        below = [digest for digest in self.named if digest not in on_host and self.is_below(digest)]
        return *found, *(Chunk((digest, *self.requests.prefix(digest)), None, is_stored=True) for digest in below)

    def is_below(self, digest: bytes) -> bool:
        """Whether the tier below has a chunk, whole."""
        content = self.objects.get(self.object_name(digest))
        return content is not None and len(content) == self.memory[:, self._slots(0)].nbytes

    def digests(self, key: Key) -> list[bytes]:
        """The hash of each whole chunk of a prompt."""
        step = self.config.chunk_tokens // self.engine.tokens
        return [bytes(digest) for digest in self.requests.new(key).block_hashes[step - 1 :: step]]

    def object_name(self, digest: bytes) -> str:
        """The name of the object of a chunk."""
        return digest.hex()

    # Internal.

    def _open_tiers(self, spec: Any) -> Any:
        module: Any = import_from(f"{OFFLOAD}.tiering.manager")
        # vLLM's tiers read this memory. That of the kit reads the memory of the cache.
        memory = memoryview(bytearray(spec.num_chunks)).cast("B", [spec.num_chunks, 1])
        region = SimpleNamespace(create_kv_memoryview=lambda: memory, cleanup=lambda: None)
        primary = module.CPUPrimaryTierOffloadingManager(num_chunks=spec.num_chunks, mmap_region=region)
        self.named: dict[bytes, None] = {}
        tier = object_tier(self, spec, memory)
        manager = module.TieringOffloadingManager(primary, [tier], tier_poll_interval_s=0.0)
        vars(spec)["_manager"] = manager
        return primary

    def _found(self, request: Any) -> int:
        limit: int = request.num_tokens
        while True:
            for _ in range(TRIES):
                found = self.connector.get_num_new_matched_tokens(request, 0, limit)[0]
                if found is not None:
                    return int(found)
                self.schedule()
            limit = self._less(limit)

    def store_below(self, digest: bytes, place: int) -> bool:
        """Store a chunk of the host in the tier below."""
        return self.objects.set(self.object_name(digest), self.memory[:, self._slots(place)].tobytes())

    def load_below(self, digest: bytes, place: int) -> None:
        """Load a chunk that the tier below has to the host."""
        slots, content = self._slots(place), self.objects.get(self.object_name(digest))
        assert content is not None, "a look-up of this step has found it"
        shape = self.config.layers, len(slots), self.config.slot_bytes
        self.memory[:, slots] = np.frombuffer(content, dtype=np.uint8).reshape(shape)


def object_tier(cache: TieredCache, spec: Any, memory: memoryview) -> Any:
    """A tier of vLLM that keeps chunks as the objects of a cache."""
    base: Any = import_from(f"{OFFLOAD}.base")
    tiering: Any = import_from(f"{OFFLOAD}.tiering.base")

    class ObjectTier(tiering.SecondaryTierManager):  # type: ignore[misc] # vLLM's class is known when it is imported
        medium = base.Medium.STORAGE

        def __init__(self) -> None:
            super().__init__(spec, memory, "objects")
            self._finished: list[Any] = []

        def lookup(self, key: bytes, req_context: Any) -> Any:
            is_there = cache.is_below(_digest(cache, base, key))
            return base.LookupResult.HIT if is_there else base.LookupResult.MISS

        def submit_store(self, job_metadata: Any) -> None:
            stored = [
                cache.store_below(_digest(cache, base, key), int(place))
                for key, place in zip(job_metadata.keys, job_metadata.chunk_ids, strict=True)
            ]
            self._finished.append(tiering.JobResult(job_metadata.job_id, all(stored)))

        def submit_load(self, job_metadata: Any) -> None:
            for key, place in zip(job_metadata.keys, job_metadata.chunk_ids, strict=True):
                cache.load_below(_digest(cache, base, key), int(place))
            self._finished.append(tiering.JobResult(job_metadata.job_id, success=True))

        def get_finished_jobs(self) -> Iterable[Any]:
            finished, self._finished = self._finished, []
            return finished

        def has_pending_work(self) -> bool:
            return bool(self._finished)

        def on_new_request(self, req_context: Any) -> Any:
            return base.RequestOffloadingContext()

        def drain_jobs(self) -> None:
            """Nothing is in flight."""

    return ObjectTier()


def _digest(cache: TieredCache, base: Any, key: bytes) -> bytes:
    digest = bytes(base.get_offload_block_hash(key))
    cache.named[digest] = None
    return digest


class VllmTiering0330(VllmConnector0330):
    """vLLM 0.33.0: chunks in host memory and in a tier below, behind the scheduler's part of OffloadingConnector."""

    capabilities = VllmConnector0330.capabilities | {Capability.STORAGE}
    cache: TieredCache

    def _connector(self, config: CacheConfig, opened: OffloadCacheConfig, engine: Blocks) -> ConnectorCache:
        store = store_of(config)
        if store is None or config.storage is None:
            raise ConfigurationError(f"{config.name}: the tier below is a scripted store")
        # Each cache has objects of its own, since a snapshot can name no prefix that only another one has computed.
        objects = StoredObjects(store, f"{config.storage.model}/kv/{next(NUMBERS)}")
        return TieredCache(opened, self.device, engine, objects)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    def storage_keys(self, pool: str, key: Key) -> Sequence[str]:
        names = [self.cache.object_name(digest) for digest in self.cache.digests(key)]
        return [self.cache.objects.key(name) for name in names]


CONFIGURATIONS: tuple[GeometricConfig, ...] = tuple(
    chunk_config(block, chunk, is_stepped=is_stepped, is_stored=True, publish=Publish.CHUNK, recomputed_tokens=0)
    for is_stepped in (False, True)
    for block, chunk in ((1, 3), (4, 4), (4, 8))
)
"""Chunks of one block and of several, with stepped transfers and with others."""
