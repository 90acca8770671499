"""vLLM 0.33.0's offloading connector stores blocks of other requests after a reset, where a model has a sliding window.

It needs vLLM alone, no GPU and no model. Run it with `python docs/reproductions/vllm_offload_reset.py`.
It prints which blocks of the device a request has, which ones the connector stores under its name, and that no event
tells of the reset.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import OffloadingConnectorScheduler
from vllm.pooling_params import PoolingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

BLOCK, DEVICE_BLOCKS, HOST_CHUNKS, WINDOW = 4, 12, 20, 5

init_none_hash(sha256_cbor)
register_all_kvcache_specs(None)
hasher = get_request_block_hasher(BLOCK, sha256_cbor)
shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float16}
specs = FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=WINDOW)
page = specs[0].page_size_bytes
tensor = KVCacheTensor(DEVICE_BLOCKS * page, ["full"], layer_stride=DEVICE_BLOCKS * page, block_stride=page)
groups = [KVCacheGroupSpec([name], spec) for name, spec in zip(("full", "window"), specs, strict=True)]
blocks = KVCacheConfig(DEVICE_BLOCKS, [tensor], groups)
# What the connector reads of vLLM's configuration.
ones = ("world_size", "tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
ones = (*ones, "decode_context_parallel_size", "data_parallel_size", "nnodes_within_dp")
absent = ("prefix_cache_retention_interval", "prefix_match_unit", "kv_cache_layout")
host = {"cpu_bytes_to_use": HOST_CHUNKS * CPUOffloadingSpec.BLOCK_SIZE_ALIGNMENT}
config = SimpleNamespace(
    cache_config=SimpleNamespace(
        block_size=BLOCK, enable_prefix_caching=True, cache_dtype="auto", **dict.fromkeys(absent)
    ),
    kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
    kv_transfer_config=SimpleNamespace(kv_connector_extra_config=host, engine_id="engine"),
    model_config=SimpleNamespace(
        model="model", dtype=torch.float16, max_model_len=100, use_mla=False, get_total_num_kv_heads=lambda: 1
    ),
    parallel_config=SimpleNamespace(
        **dict.fromkeys(ones, 1),
        rank=0,
        data_parallel_index=0,
        data_parallel_rank_local=None,
        distributed_executor_backend=None,
    ),
    speculative_config=None,
    use_v2_model_runner=False,
)


class Engine:
    """The calls of vLLM's scheduler to its cache and to the connector."""

    def __init__(self) -> None:
        self.cache = KVCacheManager(
            blocks, max_model_len=100, scheduler_block_size=BLOCK, hash_block_size=BLOCK, enable_kv_cache_events=True
        )
        spec = CPUOffloadingSpec(build_offloading_config(config, blocks))
        self.connector = OffloadingConnectorScheduler(spec, config, blocks)

    def new_request(self, name: str, first: int, count: int) -> Request:
        """A request for so many tokens, which count from the first."""
        request = Request(name, list(range(first, first + count)), None, PoolingParams(), block_hasher=hasher)
        self.connector.on_new_request(request)
        self.connector.get_num_new_matched_tokens(request, 0)
        return request

    def step(self, request: Request, tokens: int) -> dict[int, list[int]]:
        """Compute tokens of a request in a step; returns the blocks of the device that each job stores."""
        name, output = request.request_id, SchedulerOutput.make_empty()
        is_new = request.num_computed_tokens == 0
        new = self.cache.allocate_slots(request, tokens)
        table = self.cache.get_block_ids(name)
        if is_new:
            self.connector.update_state_after_alloc(request, self.cache.get_blocks(name), 0)
            output.scheduled_new_reqs = [NewRequestData.from_request(request, table)]
        else:
            output.scheduled_cached_reqs = CachedRequestData(
                [name],
                set(),
                [],
                {},
                [None if new is None else new.get_block_ids(allow_none=True)],
                [request.num_computed_tokens],
                [0],
            )
        output.num_scheduled_tokens = {name: tokens}
        meta = self.connector.build_connector_meta(output)
        request.num_computed_tokens += tokens
        return {number: job.src_spec.block_ids.tolist() for number, job in meta.store_jobs.items()}

    def complete(self, jobs: dict[int, list[int]]) -> None:
        """The worker reports that these jobs are complete."""
        done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(jobs, 1))
        self.connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=done))

    def show_events(self, when: str) -> None:
        """Print the events of device and host since the last call."""
        events = [*self.cache.take_events(), *self.connector.take_events()]
        print(f"  {when}: {[f'{type(event).__name__} {event.medium}' for event in events]}")

    def show(self, name: str) -> None:
        """Print the blocks of a request; 0 is a block that has left the window."""
        full, window = self.cache.get_block_ids(name)
        print(f"  {name} has the blocks {full}, and in the window {window}")


print("a request gets the blocks that left the window of another one")
engine = Engine()
first = engine.new_request("first", 0, 20)
for tokens in (12, 4, 1):
    engine.complete(engine.step(first, tokens))
second = engine.new_request("second", 100, 8)
engine.complete(engine.step(second, 8))
engine.show("first")
engine.show("second")
engine.connector.reset_cache()
stored = engine.step(first, 1)
print(f"  after a reset the connector stores, as those of first: {next(iter(stored.values()))}")
engine.complete(stored)
later = Request("later", [*range(8), 50], None, PoolingParams(), block_hasher=hasher)
engine.connector.on_new_request(later)
print(
    f"  a request with 8 tokens of first finds {engine.connector.get_num_new_matched_tokens(later, 0)[0]} on the host"
)

print("a request gets the blocks that left its own window")
engine = Engine()
first = engine.new_request("first", 0, 30)
for tokens in (12, 8, 4):
    engine.complete(engine.step(first, tokens))
engine.show("first")
engine.connector.reset_cache()
stored = engine.step(first, 1)
print(f"  after a reset the connector stores: {next(iter(stored.values()))}")
try:
    engine.complete(stored)
except KeyError as error:
    print(f"  the report of the worker raises KeyError: {error}")

print("no event tells that the host is empty")
engine = Engine()
first = engine.new_request("first", 0, 8)
engine.complete(engine.step(first, 8))
engine.show_events("after a store")
engine.connector.reset_cache()
print(f"  while the request runs, the device is reset: {engine.cache.reset_prefix_cache()}")
engine.show_events("after the reset of the host")
