"""vLLM's cache of chunks in host memory, CPUOffloadingManager of release 0.33.0, beside an engine.

The manager decides what is there, where it is, and what is evicted: by `lru` or by `arc`. It gets the calls of vLLM's
OffloadingConnectorScheduler: `on_new_request`, `lookup` of each chunk, `prepare_load` once the request has blocks,
`complete_load`; `prepare_store` of the chunks that the request has not offered yet, `complete_store`; and
`on_request_finished`. The bytes are copied here, layer by layer, where vLLM's worker needs a GPU.

- Without prefix caching on the device, which vLLM allows: all that is found is loaded.
- vLLM's scheduler lets a request wait for a chunk that is being stored. Here it computes this chunk, as no request of
  the suites waits before it is admitted.
- vLLM's worker does not report the failure of a store or a load. Where a test makes one fail, the manager gets what it
  has for that: `complete_store` with `success=False` for the chunks that did not arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.interface import require_interface
from hicache.engines.vllm.imports import import_from
from hicache.engines.vllm.requests import VllmRequests
from hicache.errors import ConfigurationError
from hicache.testing.adapter import Admission
from hicache.testing.caches.offload import ChunkCacheAdapter, OffloadRequest, chunk_config
from hicache.testing.caches.offload_cache import (
    Chunk,
    ChunkCache,
    Device,
    OffloadCacheConfig,
    OffloadTransfer,
)
from hicache.testing.geometry import GeometricConfig, Publish
from hicache.types import Key, Slots, Tokens, TransferKind

OFFLOAD = "vllm.v1.kv_offload"


@dataclass(slots=True, eq=False)
class Prompt:
    """What vLLM's scheduler keeps of a request: vLLM's own object, the context of its calls, and what it has offered.

    `offered`: the chunks that need no store any more, because they were loaded or given to `prepare_store`.
    """

    key: Key
    request: Any
    context: Any
    offered: int = 0


@dataclass(slots=True, eq=False)
class PromptTransfer(OffloadTransfer):
    """A transfer, and the keys of its parts in vLLM. `context`: that of the request that started it."""

    keys: Sequence[bytes] = ()
    context: Any = None


class ManagerChunks:
    """What a CPUOffloadingManager has, which vLLM shows in no other way: its chunks, and the places that are free."""

    def __init__(self, manager: Any, policy: str) -> None:
        self._base: Any = import_from(f"{OFFLOAD}.base")
        self._manager = manager
        self._policy = policy

    def ready(self) -> Iterator[tuple[bytes, int, int]]:
        """The chunks that can be loaded: the hash of each, its place, and how many loads read it."""
        for key, status in self._all():
            if status.is_ready:
                yield bytes(self._base.get_offload_block_hash(key)), int(status.chunk_id), int(status.ref_cnt)

    def keys(self) -> dict[int, bytes]:
        """By place, the key of each chunk, also of one that is being stored."""
        return {int(status.chunk_id): key for key, status in self._all()}

    def free(self) -> list[int]:
        """The places that no chunk has."""
        state = vars(self._manager)
        return [*state["_free_list"], *range(state["_num_allocated_chunks"], state["_num_chunks"])]

    def _all(self) -> Iterator[tuple[bytes, Any]]:
        policy = vars(self._manager)["_policy"]
        lists = (policy.t1, policy.t2) if self._policy == "arc" else (policy.chunks,)
        return ((key, status) for chunks in lists for key, status in chunks.items())


class VllmChunkCache(ChunkCache):
    """CPUOffloadingManager with one of its policies, and the memory that it gives out, chunk by chunk."""

    def __init__(self, config: OffloadCacheConfig, device: Device, policy: str) -> None:
        super().__init__(config, device)
        self._base: Any = import_from(f"{OFFLOAD}.base")
        (manager_class,) = import_from(f"{OFFLOAD}.cpu.manager", "CPUOffloadingManager")
        self.manager: Any = manager_class(config.host_tokens // config.chunk_tokens, cache_policy=policy)
        self._kept = ManagerChunks(self.manager, policy)
        self._requests = VllmRequests(config.chunk_tokens)

    # What a scheduler calls.

    def begin(self, key: Key) -> Prompt:
        """A new request."""
        request = self._requests.new(key)
        prompt = Prompt(key, request, self._base.ReqContext(request.request_id))
        self.manager.on_new_request(prompt.context)
        return prompt

    def extend(self, prompt: Prompt, tokens: Tokens) -> None:
        """Append tokens to a request."""
        prompt.request.append_output_token_ids(tokens.tolist())
        self._requests.remember(prompt.request, prompt.key.namespace)

    def found(self, prompt: Prompt) -> int:
        """How many chunks at the start of a prompt can be loaded."""
        hit = self._base.LookupResult.HIT
        answers = (self.manager.lookup(key, prompt.context) for key in self._keys(prompt))
        return sum(1 for _ in takewhile(lambda answer: answer is hit, answers))

    def load(self, prompt: Prompt, count: int, device: Slots) -> PromptTransfer:
        """Start to load the first chunks of a prompt, which were found, to slots of the engine."""
        keys = self._keys(prompt)[:count]
        chunks = self.manager.prepare_load(keys, prompt.context).chunk_ids
        prompt.offered = count
        return self._begin(TransferKind.LOAD, prompt, keys, chunks, device)

    def offer(self, prompt: Prompt, tokens: int, device: Slots) -> PromptTransfer | None:
        """Start to store the chunks of the first tokens that were not offered before; None if there is nothing to do.

        Without room for all of them nothing is stored, and they are offered again.
        """
        size, first = self.config.chunk_tokens, prompt.offered
        keys = self._keys(prompt)[first : tokens // size]
        output = self.manager.prepare_store(keys, prompt.context) if keys else None
        if output is None:
            return None
        prompt.offered += len(keys)
        places = [first + keys.index(key) for key in output.keys_to_store]
        slots = device[: len(device) // size * size].reshape(-1, size)[places].reshape(-1)
        if not output.keys_to_store:
            return None
        return self._begin(TransferKind.BACKUP, prompt, output.keys_to_store, output.store_spec.chunk_ids, slots)

    def end(self, prompt: Prompt) -> None:
        """A request has ended: nothing more of it is loaded or stored."""
        self.manager.on_request_finished(prompt.context)

    # Read-only.

    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(self._chunk(*found) for found in self._kept.ready())

    def free(self) -> Slots:
        return np.concatenate([self._slots(number) for number in self._kept.free()] or [np.empty(0, dtype=np.int64)])

    # Internal.

    def _keys(self, prompt: Prompt) -> list[bytes]:
        """The keys of the whole chunks of a request, which vLLM's scheduler notes with their place in it."""
        keys = [self._base.make_offload_key(digest, 0) for digest in prompt.request.block_hashes]
        for number, key in enumerate(keys, 1):
            prompt.context.set_offload_key_position(key, number * self.config.chunk_tokens)
        return keys

    def _begin(
        self, kind: TransferKind, prompt: Prompt, keys: Sequence[bytes], numbers: Sequence[int], device: Slots
    ) -> PromptTransfer:
        digests = [bytes(self._base.get_offload_block_hash(key)) for key in keys]
        chunks = [self._chunk(digest, int(number), 0) for digest, number in zip(digests, numbers, strict=True)]
        transfer = PromptTransfer(kind, self._parts(chunks, device), keys=keys, context=prompt.context)
        self._start(transfer)
        return transfer

    def _apply(self, transfer: OffloadTransfer) -> None:
        assert isinstance(transfer, PromptTransfer), "the cache starts no other transfers"
        if transfer.kind is TransferKind.LOAD:
            transfer.arrived = self._arrived(transfer) * self.config.chunk_tokens
            self.manager.complete_load(transfer.keys, transfer.context)
            return
        for success in (True, False):
            keys = [
                key for key, part in zip(transfer.keys, transfer.parts, strict=True) if part.has_failed is not success
            ]
            if keys:
                self.manager.complete_store(keys, transfer.context, success)

    def _chunk(self, digest: bytes, number: int, pins: int) -> Chunk:
        return Chunk((digest, *self._requests.prefix(digest)), self._slots(number), pins=pins)


@dataclass(slots=True, eq=False)
class PromptRequest(OffloadRequest):
    """A running request, with what vLLM's scheduler keeps of it."""

    prompt: Prompt = field(kw_only=True)


class VllmOffload0330(ChunkCacheAdapter):
    """vLLM 0.33.0: chunks in host memory, the least recently used evicted first."""

    version: ClassVar[str] = "0.33.0"
    policy: ClassVar[str] = "lru"
    cache: VllmChunkCache

    def _open(self, config: CacheConfig, opened: OffloadCacheConfig) -> VllmChunkCache:
        require_interface("vllm", type(self))
        if (
            self._geometry.publish is not Publish.CHUNK
            or self._geometry.recomputed_tokens
            or config.storage is not None
        ):
            raise ConfigurationError(
                f"{config.name}: vLLM stores what is computed, loads whole prompts, and has no storage"
            )
        return VllmChunkCache(opened, self.device, self.policy)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    def lookup(self, key: Key) -> int:
        return self.cache.found(self.cache.begin(key)) * self.cache.config.chunk_tokens

    def admit(self, key: Key) -> Admission | None:
        prompt = self.cache.begin(key)
        found = self.cache.found(prompt)
        blocks = self.device.take(self._blocks_for(len(key.tokens)))
        if blocks is None:
            self.cache.end(prompt)
            return None
        request = PromptRequest(key, blocks, prompt=prompt)
        if found:
            request.load = self.cache.load(prompt, found, self.device.slots(blocks))
        return self._admitted(request, found * self.cache.config.chunk_tokens)

    def extend(self, request: OffloadRequest, tokens: Tokens) -> Slots | None:
        slots = super().extend(request, tokens)
        if slots is not None:
            self.cache.extend(_prompt(request), tokens)
        return slots

    def finish(self, request: OffloadRequest) -> None:
        super().finish(request)
        self.cache.end(_prompt(request))

    def abort(self, request: OffloadRequest) -> None:
        super().abort(request)
        self.cache.end(_prompt(request))

    def _store(self, request: OffloadRequest, tokens: int) -> None:
        self.cache.offer(_prompt(request), tokens, self.device.slots(request.blocks))
        self._complete_unstepped()


class VllmOffloadArc0330(VllmOffload0330):
    """vLLM 0.33.0 with the policy ARC, whose order depends on how often a chunk was used, and on what was evicted."""

    policy = "arc"


def _prompt(request: OffloadRequest) -> Prompt:
    assert isinstance(request, PromptRequest), "the adapter admits no other requests"
    return request.prompt


CONFIGURATIONS: tuple[GeometricConfig, ...] = tuple(
    chunk_config(block, chunk, is_stepped=is_stepped, publish=Publish.CHUNK, recomputed_tokens=0, lookahead=lookahead)
    for is_stepped in (False, True)
    for block, chunk, lookahead in ((1, 3, 0), (4, 4, 0), (4, 16, 0), (4, 8, 2))
)
"""Chunks of one block and of several, with stepped transfers and with others."""
