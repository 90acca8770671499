"""vLLM 0.33.0's simple offload scheduler stores a block twice, and reports it as removed while one copy stays.

It needs vLLM alone, no GPU and no model. Run it with `python docs/reproductions/vllm_simple_removed_event.py`.
It prints what is stored, the events of the host, and what a request finds after them.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from vllm.pooling_params import PoolingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler
from vllm.v1.simple_kv_offload.metadata import SimpleCPUOffloadWorkerMetadata

BLOCK, DEVICE_BLOCKS, HOST_BLOCKS = 4, 10, 4  # of which one each is the null block

init_none_hash(sha256_cbor)
register_all_kvcache_specs(None)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float16)
size = DEVICE_BLOCKS * spec.page_size_bytes
tensor = KVCacheTensor(size, ["layer"], layer_stride=size, block_stride=spec.page_size_bytes)
blocks = KVCacheConfig(DEVICE_BLOCKS, [tensor], [KVCacheGroupSpec(["layer"], spec)])
cache = KVCacheManager(blocks, max_model_len=100, scheduler_block_size=BLOCK, hash_block_size=BLOCK)
# What the scheduler reads of vLLM's configuration.
config = SimpleNamespace(
    kv_events_config=SimpleNamespace(enable_kv_cache_events=True),
    max_in_flight_tokens=100,
    model_config=SimpleNamespace(max_model_len=100),
    num_prefill_lookahead_tokens=0,
    parallel_config=SimpleNamespace(decode_context_parallel_size=1, world_size=1),
    speculative_config=None,
)
host = SimpleCPUOffloadScheduler(
    config,
    blocks,
    size,
    scheduler_block_size=BLOCK,
    hash_block_size=BLOCK,
    num_cpu_blocks=HOST_BLOCKS,
)
host.bind_gpu_block_pool(cache.block_pool)
hasher = get_request_block_hasher(BLOCK, sha256_cbor)


def new_request(name: str, tokens: list[int]) -> Request:
    """A request for these tokens."""
    return Request(name, tokens, None, PoolingParams(), block_hasher=hasher)


def compute(*requests: Request) -> None:
    """Compute the prompts in one step, and store them in the next one, until their copies are complete."""
    output = SchedulerOutput.make_empty()
    for request in requests:
        found, cached, _ = cache.get_computed_blocks(request)
        cache.allocate_slots(request, request.num_tokens - cached, cached, found)
        host.update_state_after_alloc(request, cache.get_blocks(request.request_id), 0)
        output.scheduled_new_reqs.append(NewRequestData.from_request(request, cache.get_block_ids(request.request_id)))
        output.num_scheduled_tokens[request.request_id] = request.num_tokens
    host.build_connector_meta(output)
    for request in requests:
        request.num_computed_tokens = request.num_tokens
        request.append_output_token_ids([0])
        host.request_finished_all_groups(request, cache.get_block_ids(request.request_id))
        cache.free(request)
    output = SchedulerOutput.make_empty()
    output.scheduled_cached_reqs = CachedRequestData.make_empty()
    meta = host.build_connector_meta(output)
    print(f"blocks {meta.store_gpu_blocks} of the device are stored to blocks {meta.store_cpu_blocks} of the host")
    done = SimpleCPUOffloadWorkerMetadata({meta.store_event: 1})
    host.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=done))
    for event in host.take_events():
        names = [hex(block) if isinstance(block, int) else block.hex() for block in event.block_hashes]
        print(f"  {type(event).__name__} {[name[-8:] for name in names]} on {event.medium}")


prompt = [1, 2, 3, 4]
# The last token of a prompt is computed in any case, so neither request finds the block of the other.
compute(new_request("first", prompt), new_request("second", prompt))
compute(new_request("other", list(range(100, 108))))
found, _ = host.get_num_new_matched_tokens(new_request("third", [*prompt, 5]), 0)
print(f"a third request finds {found} of the tokens {prompt} on the host")
