"""vLLM 0.33.0's tiering manager never lets a request go on whose prefix is longer than the tier of the CPU.

It needs vLLM alone, no GPU and no model. Run it with `python docs/reproductions/vllm_tiering_never_ends.py`.
It prints how many steps a request waits for the connector, and what it can load then.
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
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

BLOCK, DEVICE_BLOCKS, CPU_CHUNKS, STEPS = 4, 20, 4, 1000

init_none_hash(sha256_cbor)
register_all_kvcache_specs(None)
hasher = get_request_block_hasher(BLOCK, sha256_cbor)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float16)
size = DEVICE_BLOCKS * spec.page_size_bytes
tensor = KVCacheTensor(size, ["layer"], layer_stride=size, block_stride=spec.page_size_bytes)
blocks = KVCacheConfig(DEVICE_BLOCKS, [tensor], [KVCacheGroupSpec(["layer"], spec)])
# What the connector reads of vLLM's configuration.
ones = ("world_size", "tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
ones = (*ones, "decode_context_parallel_size", "data_parallel_size", "nnodes_within_dp")
absent = ("prefix_cache_retention_interval", "prefix_match_unit", "kv_cache_layout")
tiers = {
    "cpu_bytes_to_use": CPU_CHUNKS * TieringOffloadingSpec.BLOCK_SIZE_ALIGNMENT,
    "secondary_tiers": [{"type": "example"}],
}
config = SimpleNamespace(
    cache_config=SimpleNamespace(
        block_size=BLOCK, enable_prefix_caching=True, cache_dtype="auto", **dict.fromkeys(absent)
    ),
    kv_events_config=None,
    kv_transfer_config=SimpleNamespace(kv_connector_extra_config=tiers, engine_id="reproduction"),
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
cache = KVCacheManager(blocks, max_model_len=100, scheduler_block_size=BLOCK, hash_block_size=BLOCK)
connector = OffloadingConnectorScheduler(TieringOffloadingSpec(build_offloading_config(config, blocks)), config, blocks)


def new_request(name: str, tokens: int) -> Request:
    """A request for so many tokens, which begins as every other one."""
    request = Request(name, list(range(tokens)), None, PoolingParams(), block_hasher=hasher)
    connector.on_new_request(request)
    return request


def compute(request: Request, tokens: int) -> None:
    """Compute tokens of a request in a step, and report that they are stored on the CPU."""
    name, output = request.request_id, SchedulerOutput.make_empty()
    new = cache.allocate_slots(request, tokens)
    if request.num_computed_tokens == 0:
        connector.update_state_after_alloc(request, cache.get_blocks(name), 0)
        output.scheduled_new_reqs = [NewRequestData.from_request(request, cache.get_block_ids(name))]
    else:
        output.scheduled_cached_reqs = CachedRequestData(
            [name], set(), [], {}, [new.get_block_ids()], [request.num_computed_tokens], [0]
        )
    output.num_scheduled_tokens = {name: tokens}
    meta = connector.build_connector_meta(output)
    request.num_computed_tokens += tokens
    done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(meta.store_jobs, 1))
    connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=done))


def wait(request: Request) -> tuple[int, int | None]:
    """Ask in each step what a request can load; how many steps it waits, and the answer: None if it waits on."""
    for step in range(STEPS):
        found, _ = connector.get_num_new_matched_tokens(request, 0)
        connector.build_connector_meta(SchedulerOutput.make_empty())
        if found is not None:
            return step, found
    return STEPS, None


print(f"the CPU has room for {CPU_CHUNKS} chunks of {BLOCK} tokens")
first = new_request("first", (CPU_CHUNKS + 1) * BLOCK)
connector.get_num_new_matched_tokens(first, 0)
for _ in range(CPU_CHUNKS + 1):
    compute(first, BLOCK)
connector.build_connector_meta(SchedulerOutput.make_empty())
print(f"the tier below has {connector.manager.secondary_tiers[0].get_num_chunks()}")
for count in (CPU_CHUNKS, CPU_CHUNKS + 1):
    steps, answer = wait(new_request(f"of {count} chunks", count * BLOCK))
    told = "waits on" if answer is None else f"can load {answer} tokens"
    print(f"after {steps} steps a request of {count} chunks {told}")
connector.shutdown()
