"""SGLang 0.5.18: with `prefetch_threshold` 0 and the policy `wait_complete`, a prefetch that finds nothing never ends.

It needs SGLang alone, 0.5.17 or 0.5.18, no GPU and no model. Once storage has answered that it has nothing, it prints
for five steps whether the prefetch has ended.
"""

from __future__ import annotations

import json
import tempfile
import time
from array import array
from types import SimpleNamespace

import torch
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host import base, common, mha
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context

PAGE, TOKENS = 16, 16 * 8

OPTIONS = {
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "page_first_direct",
    "hicache_ratio": 2.0,
    "hicache_size": 0,
    "hicache_write_policy": "write_through",
    "hicache_storage_backend": "file",
    "hicache_storage_backend_extra_config": json.dumps({"prefetch_threshold": 0}),
    "hicache_storage_prefetch_policy": "wait_complete",
    "served_model_name": "model",
    "file_storage_path": None,
    "extra_metric_labels": None,
}

# One rank, and host memory that is not pinned: this runs without a GPU.
ONE = {"tp_rank": 0, "tp_size": 1, "attn_tp_rank": 0, "attn_tp_size": 1, "pp_rank": 0, "pp_size": 1}
cache_controller.get_parallel = lambda: SimpleNamespace(**ONE)
cache_controller.is_dp_attention_enabled = lambda: False
cache_controller.HiCacheController.get_attn_cp_rank_and_size = lambda _: (0, 1)
for module in (memory_pool_host, base, common, mha):
    if hasattr(module, "ALLOC_MEMORY_FUNCS"):
        module.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, device, **_: torch.zeros(
            dims, dtype=dtype, device=device
        )
    if hasattr(module, "HICACHE_HOST_MEMORY_RESERVE_BYTES"):
        module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0

get_context().override_server_args(**OPTIONS).install()
pool = MHATokenToKVPool(
    size=TOKENS, page_size=PAGE, dtype=torch.float16, head_num=1, head_dim=8, device="cpu", layer_num=1,
    enable_memory_saver=False,
)  # fmt: skip
params = CacheInitParams(
    disable=False,
    req_to_token_pool=ReqToTokenPool(size=8, max_context_len=8, device="cpu", enable_memory_saver=False),
    token_to_kv_pool_allocator=PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.float16, "cpu", pool, False),
    page_size=PAGE,
    is_eagle=False,
    eviction_policy="lru",
    tree_components=(ComponentType.FULL,),
)
cache = UnifiedRadixCache(params)
with tempfile.TemporaryDirectory() as folder:
    server = SimpleNamespace(**{**OPTIONS, "file_storage_path": folder})
    cache.init_hicache(server, params)
    prompt = array("q", range(4 * PAGE))
    root = cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt))).last_host_node
    cache.prefetch_from_storage("request", root, prompt, None, None)
    controller = cache.cache_controller
    answers = [
        controller.prefetch_hit_queue,
        getattr(controller, "prefetch_revoke_queue", controller.prefetch_hit_queue),
    ]
    end_s = time.monotonic() + 60
    while all(queue.empty() for queue in answers):
        assert time.monotonic() < end_s, "SGLang's thread has not asked the empty storage within 60 s"
        time.sleep(0.1)
    for step in range(5):
        cache.check_hicache_events()
        print(f"step {step}: ended {cache.check_prefetch_progress('request')}", flush=True)
    controller.detach_storage_backend()
