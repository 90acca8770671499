"""vLLM's simple offload scheduler, SimpleCPUOffloadScheduler of release 0.33.0, with the block pool of the device.

It keeps blocks of the device's prefix cache on the host, in a block pool like that of the device. The calls are those
of `vllm_connector.py`, with these differences:

- The scheduler stores blocks that the device's prefix cache has, by their hashes. Requests here do not use this cache,
  so that all that is found is on the host, and what its evictable blocks have counts for nothing.
- A prompt is stored when its request has ended, which a step follows at once; before that only what earlier steps have
  computed. The lazy mode, which stores evictable blocks when no request has them any more, is not driven.
- Two requests that compute equal blocks side by side store both, as on the device, where blocks are kept twice too.
- Where a store fails, its blocks on both sides are released as `reset` releases them, without becoming a cached block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.vllm.adapter import split_entry
from hicache.engines.vllm.connector import Blocks, ConnectorCache, Job, JobTransfer, Running, VllmConnector0330
from hicache.engines.vllm.imports import import_from
from hicache.errors import ConfigurationError
from hicache.testing.caches.offload import chunk_config
from hicache.testing.caches.offload_cache import Chunk, Device, OffloadCacheConfig
from hicache.testing.geometry import GeometricConfig, Publish
from hicache.types import Key, Slots, TransferKind

SIMPLE = "vllm.v1.simple_kv_offload"


class SimpleOffloadCache(ConnectorCache):
    """SimpleCPUOffloadScheduler. Its block `n` is the place `n - 1`, since it has a null block too."""

    def __init__(self, config: OffloadCacheConfig, device: Device, engine: Blocks) -> None:
        super().__init__(config, device, engine, is_caching=True)
        (scheduler,) = import_from(f"{SIMPLE}.manager", "SimpleCPUOffloadScheduler")
        (self._transfer_meta,) = import_from(f"{SIMPLE}.manager", "TransferMeta")
        (self._worker_meta,) = import_from(f"{SIMPLE}.metadata", "SimpleCPUOffloadWorkerMetadata")
        places = config.host_tokens // config.chunk_tokens
        self.connector = scheduler(
            self.config_of_vllm,
            self.config_of_blocks,
            (places + 1) * config.chunk_tokens * 1024,
            scheduler_block_size=engine.tokens,
            hash_block_size=engine.tokens,
            num_cpu_blocks=places + 1,
        )
        self.connector.bind_gpu_block_pool(self.blocks.block_pool)
        self._pool = self.connector.cpu_block_pool

    # Read-only.

    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(
            Chunk((digest, *self.requests.prefix(digest)), self._slots(number - 1), pins=pins)
            for digest, number, pins in self._cached()
        )

    def free(self) -> Slots:
        blocks = self._pool.free_block_queue.get_all_free_blocks()
        slots = [self._slots(block.block_id - 1) for block in blocks if block.block_hash is None]
        return np.concatenate([np.empty(0, dtype=np.int64), *slots])

    # Internal.

    def _cached(self) -> Iterator[tuple[bytes, int, int]]:
        for block in self._pool.blocks:
            entry = block.block_hash
            if entry is not None and self._pool.cached_block_hash_to_block.contain(entry, block.block_id):
                yield split_entry(entry)[0], block.block_id, block.ref_cnt

    def _found(self, request: Any) -> int:
        return int(self.connector.get_num_new_matched_tokens(request, 0)[0])

    def end(self, running: Running, *, is_finished: bool) -> None:
        super().end(running, is_finished=is_finished)
        self.schedule()

    def _finish(self, request: Any, table: tuple[list[int], ...]) -> None:
        self.connector.request_finished_all_groups(request, table)

    def _jobs(self, meta: Any) -> Iterator[Job]:
        if meta.load_gpu_blocks:
            yield self._job(TransferKind.LOAD, meta.load_event, meta.load_cpu_blocks, meta.load_gpu_blocks)
        if meta.store_gpu_blocks:
            yield self._job(TransferKind.BACKUP, meta.store_event, meta.store_cpu_blocks, meta.store_gpu_blocks)

    def _job(self, kind: TransferKind, number: int, host: Sequence[int], device: Sequence[int]) -> Job:
        return kind, number, [block - 1 for block in host], self._device_slots(device)

    def _flushed(self, meta: Any) -> Sequence[int]:
        return ()  # only a preemption flushes, and none happens here

    def _completed(self, transfer: JobTransfer) -> Any:
        is_store = transfer.kind is TransferKind.BACKUP
        return self._worker_meta(completed_store_events={transfer.number: 1}) if is_store else None

    def _fail_store(self, transfer: JobTransfer) -> None:
        kept = vars(self.connector)["_store_event_to_blocks"][transfer.number]
        failed = [at for at, part in enumerate(transfer.parts) if part.has_failed]
        lost = self._transfer_meta(
            *([blocks[at] for at in failed] for blocks in (kept.gpu_block_ids, kept.cpu_block_ids))
        )
        for at in reversed(failed):
            del kept.gpu_block_ids[at], kept.cpu_block_ids[at]
        vars(self.connector)["_in_flight_store_gpu_blocks"].difference_update(lost.gpu_block_ids)
        self.connector._release_transfer_refs(lost)  # noqa: SLF001 - as `reset` does


class VllmSimpleOffload0330(VllmConnector0330):
    """vLLM 0.33.0: the simple offload scheduler, which stores what a request has computed."""

    departures = frozenset({"INS-1"})

    def _connector(self, config: CacheConfig, opened: OffloadCacheConfig, engine: Blocks) -> ConnectorCache:
        if opened.chunk_tokens != engine.tokens or self._geometry.publish is not Publish.REQUEST:
            raise ConfigurationError(f"{config.name}: the scheduler keeps blocks, and stores all when a request ends")
        return SimpleOffloadCache(opened, self.device, engine)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    def lookup(self, key: Key) -> int:
        # vLLM always leaves out the last token.
        return self.cache.lookup(dataclasses.replace(key, tokens=np.append(key.tokens, key.tokens[-1:])))


CONFIGURATIONS: tuple[GeometricConfig, ...] = tuple(
    chunk_config(block, block, is_stepped=is_stepped, publish=Publish.REQUEST, lookahead=lookahead)
    for is_stepped in (False, True)
    for block, lookahead in ((1, 0), (4, 0), (16, 0), (4, 2))
)
"""Blocks of one token and of several, with stepped transfers and with others."""
