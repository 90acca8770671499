"""vLLM's connectors of host memory, release 0.33.0: the part of them that runs in vLLM's scheduler, and its block pool.

`VllmConnector0330` has OffloadingConnectorScheduler over CPUOffloadingManager. Both are vLLM's own, as are the
KVCacheManager with the blocks of the device, the configuration, which vLLM's connector makes, and each SchedulerOutput.
Every verb is one step of vLLM's scheduler or several:

- `admit`: `on_new_request`, `get_num_new_matched_tokens`, `allocate_slots`, `update_state_after_alloc`, and a step.
- `checkpoint`: a step that computes tokens. `extend`: `allocate_slots`, and a step that tells the new blocks.
- `finish`, `abort`: `request_finished`, and the blocks are freed; the connector learns it in the next step. A request
  that is loading keeps its blocks until the load has ended.
- `step`: what the worker reports, by `update_connector_output`, and a step without requests.

The bytes are copied here, where vLLM's worker needs a GPU. A job that the connector wants flushed is complete before
the step goes on, as in the worker.

- Decoded tokens are stored too, which is an option of vLLM.
- The device has no prefix cache, which is another option of vLLM: all hits are on the host.
- An admission has blocks for the whole prompt, also while it loads, when vLLM's scheduler takes the rest later.
- vLLM's scheduler lets a request wait for a chunk that is being stored. No request of the suites waits before it is
  admitted: it takes what comes before this chunk, by the limit that `get_num_new_matched_tokens` has.
- vLLM's worker reports no failure. Where a test makes a load fail, the request goes on with the tokens before it, as
  vLLM's scheduler does for connectors that report one. Where a store fails, the manager records its chunks as failed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig
from hicache.engines.interface import require_interface
from hicache.engines.vllm.imports import CONNECTOR, import_from
from hicache.engines.vllm.offload import OFFLOAD, ManagerChunks
from hicache.engines.vllm.requests import VllmRequests
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.testing.adapter import Admission, Capability
from hicache.testing.caches.offload import ChunkCacheAdapter, OffloadRequest, chunk_config
from hicache.testing.caches.offload_cache import (
    Chunk,
    ChunkCache,
    Device,
    Identity,
    OffloadCacheConfig,
    OffloadTransfer,
)
from hicache.testing.geometry import GeometricConfig, Publish
from hicache.types import SHARED, Key, Slots, Tokens, TransferKind

MAX_MODEL_TOKENS = 1 << 16
"""Longer than any prompt of the suites."""

UNNAMED: Identity = (b"", SHARED, b"")
"""The chunk of a job: vLLM tells its worker places and no hashes."""

Job = tuple[TransferKind, int, Sequence[int], Slots]
"""The direction, the number that vLLM gives it, the places on the host, and the slots of the device, chunk by chunk."""


@dataclass(slots=True, eq=False)
class Running(OffloadRequest):
    """A running request. `told`: how many of its blocks the connector knows. `has_left`: it ended while it loaded."""

    request: Any = field(kw_only=True)
    told: int = 0
    has_left: bool = False


@dataclass(slots=True, eq=False)
class JobTransfer(OffloadTransfer):
    """The transfer of one job. `places`: of its chunks on the host. `running`: the request that waits for a load."""

    number: int = field(kw_only=True)
    places: Sequence[int] = field(kw_only=True)
    running: Running | None = None


@dataclass(frozen=True, slots=True)
class Blocks:
    """The device of an engine: how many blocks it has, the tokens of one, and the slots beyond those of the tokens."""

    count: int
    tokens: int
    lookahead: int


class ConnectorCache(ChunkCache):
    """A connector in vLLM's scheduler, with the blocks that the scheduler gives out. A subclass opens the connector."""

    connector: Any
    blocks: Any
    requests: VllmRequests

    def __init__(self, config: OffloadCacheConfig, device: Device, engine: Blocks, *, is_caching: bool) -> None:
        super().__init__(config, device)
        self.engine = engine
        self.requests = VllmRequests(engine.tokens)
        self.config_of_vllm = vllm_config(engine, is_caching=is_caching)
        self.config_of_blocks = block_config(engine)
        (manager,) = import_from("vllm.v1.core.kv_cache_manager", "KVCacheManager")
        import_from("vllm.v1.core.single_type_kv_cache_manager").register_all_kvcache_specs(None)
        self.blocks = manager(
            self.config_of_blocks, MAX_MODEL_TOKENS, engine.tokens, engine.tokens, enable_caching=is_caching
        )
        self._output: Any = import_from("vllm.v1.core.sched.output")
        (self._report,) = import_from("vllm.v1.outputs", "KVConnectorOutput")
        (self._status,) = import_from("vllm.v1.request", "RequestStatus")
        self._ended: set[str] = set()

    # Hooks.

    @abstractmethod
    def _found(self, request: Any) -> int:
        """How many tokens of a new request the connector can load. It may hold them until the request has blocks."""

    @abstractmethod
    def _jobs(self, meta: Any) -> Iterator[Job]:
        """The jobs that the connector gives the worker in a step."""

    @abstractmethod
    def _flushed(self, meta: Any) -> Sequence[int]:
        """The numbers of the jobs that must be complete before a step goes on."""

    @abstractmethod
    def _completed(self, transfer: JobTransfer) -> Any:
        """What a worker reports of a job that is complete; None for a load, which its request alone reports."""

    @abstractmethod
    def _fail_store(self, transfer: JobTransfer) -> None:
        """Tell the manager that the parts of a store that failed did not arrive."""

    def _announce(self, request: Any) -> None:
        """A request comes to the scheduler."""

    def _let_go(self) -> None:
        """End what a look-up began that no step follows."""

    # What a scheduler does.

    def lookup(self, key: Key) -> int:
        """How many tokens of a prompt the connector can load; the request ends at once."""
        request = self._begin(key)
        found = self._found(request)
        self._end(request, is_finished=False)
        self._let_go()
        return found

    def admit(self, key: Key) -> Running | None:
        """Admit a request, and start to load what is found; None without room."""
        request = self._begin(key)
        found = self._found(request)
        is_granted = self.blocks.allocate_slots(
            request,
            len(key.tokens) - found,
            num_external_computed_tokens=found,
            num_lookahead_tokens=self.engine.lookahead,
            delay_cache_blocks=True,
        )
        if is_granted is None:
            self._end(request, is_finished=False)
            return None
        self.connector.update_state_after_alloc(request, self.blocks.get_blocks(request.request_id), found)
        request.num_computed_tokens = found
        running = Running(key, self._table(request), request=request)
        loads = [one for one in self.schedule(None if found else running) if one.kind is TransferKind.LOAD]
        for load in loads:
            running.load, load.running = load, running
        return running

    def extend(self, running: Running, tokens: Tokens) -> bool:
        """Give a request blocks for more tokens, and append them; False without room."""
        request = running.request
        missing = len(running.key.tokens) + len(tokens) - request.num_computed_tokens
        granted = self.blocks.allocate_slots(
            request, missing, num_lookahead_tokens=self.engine.lookahead, delay_cache_blocks=True
        )
        if granted is None:
            return False
        request.append_output_token_ids(tokens.tolist())
        self.requests.remember(request, running.key.namespace)
        running.blocks = self._table(request)
        self.schedule(running)
        return True

    def compute(self, running: Running, tokens: int) -> None:
        """A step that computes a request up to so many tokens."""
        count = tokens - running.request.num_computed_tokens
        if count > 0:
            self.blocks.cache_blocks(running.request, tokens)
            self.schedule(running, count)

    def end(self, running: Running, *, is_finished: bool) -> None:
        """End a request. While it loads, it keeps its blocks."""
        request = running.request
        if is_finished:
            self.compute(running, len(running.key.tokens))
            # The token that was sampled last: it is never computed.
            request.append_output_token_ids([0])
        running.has_left = running.load is not None and not running.load.is_applied
        self._end(request, is_finished=is_finished, keeps_blocks=running.has_left)

    def schedule(self, running: Running | None = None, count: int = 0) -> list[JobTransfer]:
        """A step of the scheduler, which computes so many tokens of one request; returns the jobs that it starts."""
        meta = self.connector.build_connector_meta(self._scheduled(running, count))
        self._ended = set()
        if running is not None:
            running.told = len(running.blocks)
            running.request.num_computed_tokens += count
        started = [self._start_job(*job) for job in self._jobs(meta)]
        for number in self._flushed(meta):
            for transfer in [one for one in self._transfers if isinstance(one, JobTransfer) and one.number == number]:
                self.complete(transfer)
                self._take_over(transfer)
        return started

    def free_blocks(self) -> list[int]:
        """The blocks that the engine can give out."""
        return [block.block_id for block in self.blocks.block_pool.free_block_queue.get_all_free_blocks()]

    # Internal.

    def _begin(self, key: Key) -> Any:
        request = self.requests.new(key)
        self._announce(request)
        return request

    def _end(self, request: Any, *, is_finished: bool, keeps_blocks: bool = False) -> None:
        request.status = self._status.FINISHED_STOPPED if is_finished else self._status.FINISHED_ABORTED
        table = self.blocks.get_block_ids_for_computed_tokens(request.request_id, request.num_computed_tokens)
        self._finish(request, table)
        self._ended.add(request.request_id)
        if not keeps_blocks:
            self.blocks.free(request)

    def _finish(self, request: Any, table: tuple[list[int], ...]) -> None:
        self.connector.request_finished(request)

    def _table(self, request: Any) -> list[int]:
        return list(self.blocks.get_block_ids(request.request_id)[0])

    def _scheduled(self, running: Running | None, count: int) -> Any:
        """What the scheduler decided in a step, as vLLM tells it."""
        output = self._output.SchedulerOutput.make_empty()
        output.finished_req_ids = self._ended
        if running is None:
            return output
        name, news = running.request.request_id, running.blocks[running.told :]
        if running.told:
            output.scheduled_cached_reqs = self._output.CachedRequestData(
                req_ids=[name],
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[(news,) if news else None],
                num_computed_tokens=[running.request.num_computed_tokens],
                num_output_tokens=[running.request.num_output_tokens],
            )
        else:
            output.scheduled_new_reqs = [self._output.NewRequestData.from_request(running.request, (news,))]
        output.num_scheduled_tokens = {name: count} if count else {}
        output.total_num_scheduled_tokens = count
        return output

    def _start_job(self, kind: TransferKind, number: int, places: Sequence[int], device: Slots) -> JobTransfer:
        parts = self._parts([Chunk(UNNAMED, self._slots(place)) for place in places], device)
        transfer = JobTransfer(kind, parts, number=number, places=places)
        self._start(transfer)
        return transfer

    def _complete_request(self, running: Running, arrived: int) -> None:
        """A load has ended, whole or in part: the request goes on with what arrived, or its blocks are free."""
        request = running.request
        if running.has_left:
            self.blocks.free(request)
            return
        self.blocks.cache_blocks(request, arrived)
        # Of a prompt that was found as a whole the last token is computed again.
        request.num_computed_tokens = min(arrived, request.num_tokens - 1)

    def _apply(self, transfer: OffloadTransfer) -> None:
        assert isinstance(transfer, JobTransfer), "the cache starts no other transfers"
        running = transfer.running
        if transfer.kind is TransferKind.LOAD:
            transfer.arrived = self._arrived(transfer) * self.config.chunk_tokens
        else:
            self._fail_store(transfer)
        report = self._report(kv_connector_worker_meta=self._completed(transfer))
        if running is not None:
            report.finished_recving = {running.request.request_id}
        self.connector.update_connector_output(report)
        if running is not None:
            self._complete_request(running, transfer.arrived)

    def _device_slots(self, blocks: Sequence[int]) -> Slots:
        first = np.array(blocks, dtype=np.int64) * self.engine.tokens
        return (first[:, None] + np.arange(self.engine.tokens, dtype=np.int64)).reshape(-1)


class OffloadingConnectorCache(ConnectorCache):
    """OffloadingConnectorScheduler over CPUOffloadingManager."""

    def __init__(self, config: OffloadCacheConfig, device: Device, engine: Blocks) -> None:
        super().__init__(config, device, engine, is_caching=False)
        (build,) = import_from(f"{CONNECTOR}.offloading.config", "build_offloading_config")
        (spec,) = import_from(f"{OFFLOAD}.cpu.spec", "CPUOffloadingSpec")
        (scheduler,) = import_from(f"{CONNECTOR}.offloading.scheduler", "OffloadingConnectorScheduler")
        common: Any = import_from(f"{CONNECTOR}.offloading.common")
        self._worker_meta = common.OffloadingWorkerMetadata
        self.config_of_vllm.kv_transfer_config.kv_connector_extra_config = {
            "blocks_per_chunk": config.chunk_tokens // engine.tokens,
            "offload_prompt_only": False,
            "cpu_bytes_to_use": config.host_tokens // config.chunk_tokens * spec.BLOCK_SIZE_ALIGNMENT,
        }
        opened = spec(build(self.config_of_vllm, self.config_of_blocks))
        self.primary = self._open_tiers(opened)
        self.connector = scheduler(opened, self.config_of_vllm, self.config_of_blocks)
        self._kept = ManagerChunks(self.primary, "lru")

    def _open_tiers(self, spec: Any) -> Any:
        """Open what a specification manages; returns the manager of host memory."""
        return spec.get_manager()

    # Read-only.

    def chunks(self) -> tuple[Chunk, ...]:
        return tuple(
            Chunk((digest, *self.requests.prefix(digest)), self._slots(place), pins=pins)
            for digest, place, pins in self._kept.ready()
        )

    def free(self) -> Slots:
        return np.concatenate([self._slots(place) for place in self._kept.free()] or [np.empty(0, dtype=np.int64)])

    # Internal.

    def _announce(self, request: Any) -> None:
        self.connector.on_new_request(request)

    def _let_go(self) -> None:
        self.connector._release_step()  # noqa: SLF001 - a step ends with it

    def _found(self, request: Any) -> int:
        limit: int = request.num_tokens
        while (found := self.connector.get_num_new_matched_tokens(request, 0, limit)[0]) is None:
            limit = self._less(limit)
        return int(found)

    def _less(self, limit: int) -> int:
        """The next smaller limit of what a request may load, at the end of a chunk."""
        return (limit - 1) // self.config.chunk_tokens * self.config.chunk_tokens

    def _jobs(self, meta: Any) -> Iterator[Job]:
        for number, job in meta.load_jobs.items():
            yield TransferKind.LOAD, number, job.src_spec.chunk_ids.tolist(), self._device_slots(job.dst_spec.block_ids)
        for number, job in meta.store_jobs.items():
            yield (
                TransferKind.BACKUP,
                number,
                job.dst_spec.chunk_ids.tolist(),
                self._device_slots(job.src_spec.block_ids),
            )

    def _flushed(self, meta: Any) -> Sequence[int]:
        return sorted(meta.jobs_to_flush)

    def _completed(self, transfer: JobTransfer) -> Any:
        return self._worker_meta(completed_jobs={transfer.number: 1})

    def _fail_store(self, transfer: JobTransfer) -> None:
        keys, job = self._kept.keys(), vars(self.connector)["_jobs"][transfer.number]
        failed = [keys[place] for place, part in zip(transfer.places, transfer.parts, strict=True) if part.has_failed]
        if failed:
            context = vars(self.connector)["_req_status"][job.req_id].req_context
            self.primary.complete_store(failed, context, success=False)
            job.keys.difference_update(failed)


class VllmConnector0330(ChunkCacheAdapter):
    """vLLM 0.33.0: chunks of one block or more in host memory, behind the scheduler's part of OffloadingConnector."""

    version: ClassVar[str] = "0.33.0"
    cache: ConnectorCache

    def _open(self, config: CacheConfig, opened: OffloadCacheConfig) -> ConnectorCache:
        require_interface("vllm", type(self))
        if (config.storage is not None) is not (Capability.STORAGE in self.capabilities):
            raise ConfigurationError(f"{config.name}: expected a storage exactly where the adapter declares one")
        engine = Blocks(self.device.blocks, self.device.size, self._geometry.lookahead)
        return self._connector(config, opened, engine)

    def _connector(self, config: CacheConfig, opened: OffloadCacheConfig, engine: Blocks) -> ConnectorCache:
        if self._geometry.publish is not Publish.CHUNK or self._geometry.recomputed_tokens:
            raise ConfigurationError(f"{config.name}: vLLM stores what is computed, and loads whole prompts")
        return OffloadingConnectorCache(opened, self.device, engine)

    @classmethod
    def configurations(cls) -> Sequence[CacheConfig]:
        return CONFIGURATIONS

    # Requests.

    def lookup(self, key: Key) -> int:
        return self.cache.lookup(key)

    def admit(self, key: Key) -> Admission | None:
        running = self.cache.admit(key)
        if running is None:
            return None
        found = 0 if running.load is None else len(running.load.parts) * self.cache.config.chunk_tokens
        return self._admitted(running, found)

    def extend(self, request: OffloadRequest, tokens: Tokens) -> Slots | None:
        if not self.cache.extend(_running(request), tokens):
            return None
        request.key = Key(np.concatenate((request.key.tokens, tokens)), request.key.namespace)
        self._complete_unstepped()
        return self.device.slots(request.blocks)

    def finish(self, request: OffloadRequest) -> None:
        self.cache.end(_running(request), is_finished=True)
        self._complete_unstepped()

    def abort(self, request: OffloadRequest) -> None:
        self.cache.end(_running(request), is_finished=False)
        self._complete_unstepped()

    # Transfers.

    def step(self) -> None:
        self.cache.step()
        self.cache.schedule()

    def drain(self) -> None:
        self.step()
        while self.cache.transfers():
            for transfer in self.cache.pending():
                self.cache.complete(transfer)
            self.step()

    # Internal.

    def _store(self, request: OffloadRequest, tokens: int) -> None:
        self.cache.compute(_running(request), tokens)
        self._complete_unstepped()

    def _free_blocks(self) -> Sequence[int]:
        busy = self._busy()
        return [number for number in self.cache.free_blocks() if number not in busy]

    def _held(self, transfer: OffloadTransfer) -> Slots:
        assert isinstance(transfer, JobTransfer), "the cache starts no other transfers"
        running = transfer.running
        if running is not None and running.has_left:
            return self.device.slots(running.blocks)
        return super()._held(transfer)


def _running(request: OffloadRequest) -> Running:
    assert isinstance(request, Running), "the adapter admits no other requests"
    return request


def block_config(engine: Blocks) -> Any:
    """The blocks of the device, for vLLM: one group with full attention, and block 0, which vLLM never allocates."""
    interface = import_from("vllm.v1.kv_cache_interface")
    spec = interface.FullAttentionSpec(block_size=engine.tokens, num_kv_heads=1, head_size=1, dtype=torch.uint8)
    size = (engine.count + 1) * spec.page_size_bytes
    layers = interface.KVCacheTensor(size, ["layer"], layer_stride=size, block_stride=spec.page_size_bytes)
    return interface.KVCacheConfig(engine.count + 1, [layers], [interface.KVCacheGroupSpec(["layer"], spec)])


def vllm_config(engine: Blocks, *, is_caching: bool) -> Any:
    """What the connectors read of vLLM's configuration: one worker, no drafts, no events."""
    one = dict.fromkeys(
        (
            *("world_size", "tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size"),
            *("decode_context_parallel_size", "data_parallel_size", "nnodes_within_dp"),
        ),
        1,
    )
    parallel = {"rank": 0, "data_parallel_index": 0, "data_parallel_rank_local": None}
    cache: dict[str, Any] = {"block_size": engine.tokens, "enable_prefix_caching": is_caching, "cache_dtype": "auto"}
    absent = dict.fromkeys(("prefix_cache_retention_interval", "prefix_match_unit", "kv_cache_layout"))
    model = {"model": "model", "dtype": torch.uint8, "max_model_len": MAX_MODEL_TOKENS, "use_mla": False}
    return SimpleNamespace(
        cache_config=SimpleNamespace(**cache, **absent),
        kv_events_config=None,
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config={}, engine_id="engine"),
        max_in_flight_tokens=MAX_MODEL_TOKENS,
        model_config=SimpleNamespace(**model, get_total_num_kv_heads=lambda: 1),
        num_prefill_lookahead_tokens=0,
        parallel_config=SimpleNamespace(**one, **parallel, distributed_executor_backend=None),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=MAX_MODEL_TOKENS),
        speculative_config=None,
        use_v2_model_runner=False,
    )


CONFIGURATIONS: tuple[GeometricConfig, ...] = tuple(
    chunk_config(block, chunk, is_stepped=is_stepped, publish=Publish.CHUNK, recomputed_tokens=0, lookahead=lookahead)
    for is_stepped in (False, True)
    for block, chunk, lookahead in ((1, 3, 0), (4, 4, 0), (4, 16, 0), (4, 8, 2))
)
"""Chunks of one block and of several, with stepped transfers and with others."""
