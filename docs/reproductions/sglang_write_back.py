"""SGLang 0.5.23: with `write_back`, storage gets the end of a prompt without its beginning.

It needs SGLang alone, no GPU and no model. Two prompts share their first two pages. The end of the longer one leaves
the device and is stored; its beginning stays on the device. A second server with the same storage loads nothing. Then
everything leaves the device, and storage has the whole prompt. A third server has computed the first two pages: its
scheduler does not prefetch the other two.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, EvictParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host import base, common, mha
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context, get_parallel

PAGE, TOKENS = 16, 16 * 8
PROMPT = array("q", range(4 * PAGE))
PATIENCE_S = 60

OPTIONS = {
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
    "hicache_ratio": 2.0,
    "hicache_size": 0,
    "hicache_write_policy": "write_back",
    "hicache_storage_backend": "file",
    "hicache_storage_backend_extra_config": json.dumps({"prefetch_threshold": PAGE}),
    "hicache_storage_prefetch_policy": "wait_complete",
    "served_model_name": "model",
    "extra_metric_labels": None,
}

# One rank, host memory that is not pinned, and copies by torch: this runs without a GPU.
ONE = {
    f"{group}_{what}": value
    for group in ("tp", "attn_tp", "moe_tp", "pp")
    for what, value in (("rank", 0), ("size", 1))
}
get_parallel().override_permanently(**ONE, attn_dcp_rank=0)
cache_controller.is_dp_attention_enabled = lambda: False
cache_controller.HiCacheController.get_attn_cp_rank_and_size = lambda _: (0, 1)


def copy(src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, **_: Any) -> None:
    """Copy slots of each layer."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


for module in (base, common, mha):
    module.transfer_kv_direct = copy
    if hasattr(module, "HICACHE_HOST_MEMORY_RESERVE_BYTES"):
        module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0
    if hasattr(module, "ALLOC_MEMORY_FUNCS"):
        module.ALLOC_MEMORY_FUNCS["cpu"] = lambda dims, dtype, device, **_: torch.zeros(
            dims, dtype=dtype, device=device
        )


class Server:
    """A cache with its pools. `folder`: of the files that are its storage."""

    def __init__(self, folder: str) -> None:
        options = {**OPTIONS, "file_storage_path": folder}
        get_context().override_server_args(**options).install()
        pool = MHATokenToKVPool(
            size=TOKENS, page_size=PAGE, dtype=torch.float16, head_num=1, head_dim=8, device="cpu", layer_num=1,
            enable_memory_saver=False,
        )  # fmt: skip
        self.slots = PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.float16, "cpu", pool, False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=ReqToTokenPool(size=8, max_context_len=8, device="cpu", enable_memory_saver=False),
            token_to_kv_pool_allocator=self.slots,
            page_size=PAGE,
            tree_components=(ComponentType.FULL,),
            tree_core_backend="python",
        )
        self.cache = UnifiedRadixCache(params)
        self.cache.init_hicache(SimpleNamespace(**options), params)
        self.cache.cache_controller.storage_host_pool.pin_memory = False

    def compute(self, pages: int) -> None:
        """Cache the first pages of the prompt; a request gives its own slots for all of them."""
        key = RadixKey(PROMPT[: pages * PAGE])
        self.cache.insert(InsertParams(key=key, value=self.slots.alloc(pages * PAGE)))

    def evict(self, pages: int) -> None:
        """Evict pages from the device, and let storage have what moved to the host."""
        self.cache.evict(EvictParams(num_tokens=pages * PAGE))
        self._wait_until(lambda: not self.cache.ongoing_backup)

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_done():
            assert time.monotonic() < end_s, f"storage has not ended within {PATIENCE_S} s"
            self.cache.check_hicache_events()
            time.sleep(0.05)

    def prefetch(self, *, as_scheduler: bool) -> str:
        """Prefetch the prompt. `as_scheduler`: under the condition of its `_prefetch_kvcache`."""
        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(PROMPT)))
        node, start = found.last_host_node, found.device_prefix_len + found.host_hit_length
        if as_scheduler and not (self.cache.is_backuped(node) or self.cache.is_root(node)):
            return "not asked for"
        request = CacheRequestHandle("request", 0)
        last = self.cache.get_last_hash_value(node)
        self.cache.prefetch_from_storage(request, node, PROMPT[start:], last, None, PROMPT[:start])
        self._wait_until(lambda: self.cache.check_prefetch_progress(request))
        return (
            f"{self.cache.pop_prefetch_loaded_tokens(request) // PAGE} of {(len(PROMPT) - start) // PAGE} pages loaded"
        )


with tempfile.TemporaryDirectory() as folder:
    first = Server(folder)
    first.compute(2)
    first.compute(4)
    first.evict(2)
    print(f"the end left the device: {len(list(Path(folder).iterdir()))} of 4 pages in storage")
    print(f"  a second server: {Server(folder).prefetch(as_scheduler=True)}")
    first.evict(2)
    print(f"everything left the device: {len(list(Path(folder).iterdir()))} of 4 pages in storage")
    print(f"  a second server: {Server(folder).prefetch(as_scheduler=True)}")
    third = Server(folder)
    third.compute(2)
    print(f"  a third server, which has computed 2 pages: {third.prefetch(as_scheduler=True)}")
    print(f"  the same without the scheduler's condition: {third.prefetch(as_scheduler=False)}", flush=True)
os._exit(0)
