"""In vLLM 0.33.0 a request whose chunks evict each other from the CPU tier waits forever.

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


class Engine:
    """The calls of vLLM's scheduler to its cache and to the connector."""

    def __init__(self) -> None:
        self.cache = KVCacheManager(blocks, max_model_len=100, scheduler_block_size=BLOCK, hash_block_size=BLOCK)
        spec = TieringOffloadingSpec(build_offloading_config(config, blocks))
        self.connector = OffloadingConnectorScheduler(spec, config, blocks)

    def new_request(self, name: str, first: int, chunks: int) -> Request:
        """A request for so many chunks of tokens, which count from the first."""
        tokens = list(range(first, first + chunks * BLOCK))
        request = Request(name, tokens, None, PoolingParams(), block_hasher=hasher)
        self.connector.on_new_request(request)
        return request

    def compute(self, name: str, first: int, chunks: int) -> None:
        """Compute a request chunk by chunk, and report each as stored on the CPU; the tier below stores it then."""
        request = self.new_request(name, first, chunks)
        self.connector.get_num_new_matched_tokens(request, 0)
        for chunk in range(chunks):
            output = SchedulerOutput.make_empty()
            new = self.cache.allocate_slots(request, BLOCK)
            if chunk == 0:
                self.connector.update_state_after_alloc(request, self.cache.get_blocks(name), 0)
                output.scheduled_new_reqs = [NewRequestData.from_request(request, self.cache.get_block_ids(name))]
            else:
                table, computed = new.get_block_ids(), request.num_computed_tokens
                output.scheduled_cached_reqs = CachedRequestData([name], set(), [], {}, [table], [computed], [0])
            output.num_scheduled_tokens = {name: BLOCK}
            meta = self.connector.build_connector_meta(output)
            request.num_computed_tokens += BLOCK
            done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(meta.store_jobs, 1))
            self.connector.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=done))
        self.connector.build_connector_meta(SchedulerOutput.make_empty())

    def ask(self, request: Request) -> None:
        """Ask in each step what a request can load, until the answer is not to wait."""
        for step in range(STEPS):
            found, _ = self.connector.get_num_new_matched_tokens(request, 0)
            self.connector.build_connector_meta(SchedulerOutput.make_empty())
            if found is not None:
                print(f"  {request.request_id} waits {step} steps, and can load {found // BLOCK} chunks")
                return
        print(f"  {request.request_id} waits {STEPS} steps, and would wait on")

    def show(self) -> None:
        """Print how many chunks the tier below has."""
        print(f"  the tier below has {self.connector.manager.secondary_tiers[0].get_num_chunks()} chunks")


print(f"the CPU has room for {CPU_CHUNKS} chunks: a prefix of {CPU_CHUNKS} or of {CPU_CHUNKS + 1}")
engine = Engine()
engine.compute("first", 0, CPU_CHUNKS + 1)
engine.show()
engine.ask(engine.new_request("a request of 4 chunks", 0, CPU_CHUNKS))
engine.ask(engine.new_request("a request of 5 chunks", 0, CPU_CHUNKS + 1))
engine.connector.shutdown()

print("a prefix of 3 chunks, while others are stored")
engine = Engine()
engine.compute("first", 0, 3)
engine.compute("second", 100, 4)
engine.show()
waiting = engine.new_request("a request of 3 chunks", 0, 3)
engine.ask(waiting)
print("  the device has no room for it, and another request stores 2 chunks")
engine.compute("third", 200, 2)
engine.ask(waiting)
engine.connector.shutdown()
