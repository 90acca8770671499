"""SGLang 0.5.23: storage that one of two ranks cannot open is attached at runtime, and the other rank hangs.

It needs SGLang alone, no GPU and no model. Two processes have a cache each, and one tensor-parallel group on gloo.
Both are asked to attach storage in files, as `PUT /hicache/storage-backend` does. Rank 0 cannot make its folder.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
from sglang.srt.managers import cache_controller
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.pool_host import base, common, mha
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_context, get_parallel
from torch import distributed

PAGE, TOKENS, RANKS, PATIENCE_S = 16, 16 * 8, 2, 20

OPTIONS = {
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
    "hicache_ratio": 2.0,
    "hicache_size": 0,
    "hicache_write_policy": "write_through",
    "hicache_storage_backend": None,
    "hicache_storage_backend_extra_config": None,
    "hicache_storage_prefetch_policy": "wait_complete",
    "served_model_name": "model",
    "extra_metric_labels": None,
}


def open_cache(rank: int, store: str) -> UnifiedRadixCache:
    """A cache without storage. Host memory is not pinned, so that this runs without a GPU."""
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=10 * PATIENCE_S)
    )
    own = {f"{group}_{what}": value for group in ("tp", "attn_tp") for what, value in (("rank", rank), ("size", RANKS))}
    get_parallel().override_permanently(**own, moe_tp_rank=0, moe_tp_size=1, pp_rank=0, pp_size=1, attn_dcp_rank=0)
    cache_controller.is_dp_attention_enabled = lambda: False
    for module in (base, common, mha):
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
        tp_cache_group=distributed.new_group(list(range(RANKS)), backend="gloo"),
        tree_components=(ComponentType.FULL,),
        tree_core_backend="python",
    )
    cache = UnifiedRadixCache(params)
    cache.init_hicache(SimpleNamespace(**OPTIONS), params)
    return cache


def run(rank: int, folder: Path) -> None:
    """One rank: attach storage, and say what came of it."""
    cache = open_cache(rank, str(folder / "store"))
    # A file is where the folder of rank 0 would be made, as a disk that is full or read-only refuses it.
    parent = folder / f"rank{rank}"
    parent.touch() if rank == 0 else parent.mkdir()
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(parent / "pages")
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
    is_attached, words = cache.attach_storage_backend("file", "{}", "model")
    print(f"rank {rank}: attached {is_attached}: {words}", flush=True)
    distributed.barrier()
    print(f"rank {rank}: serves its next request", flush=True)


with tempfile.TemporaryDirectory() as shared:
    child = os.fork()
    if not child:
        run(1, Path(shared))
        os._exit(0)
    sys.stdout.flush()
    run(0, Path(shared))
