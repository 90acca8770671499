"""vLLM 0.33.0 reads the beginning of a longer page, of a deployment with another layout, as the page that it looks for.

It needs vLLM alone, no GPU and no model. Run it with `python docs/reproductions/vllm_fs_other_layout.py`.
It prints the folders of two deployments, and what the second one finds and reads.
"""

from __future__ import annotations

import mmap
import tempfile
import time

import numpy as np
from vllm.v1.kv_offload import config
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager, TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

KEY = make_offload_key(bytes(32), 0)
REQUEST = ReqContext("one")


def open_tier(folder: str, layout: str, page_bytes: int) -> tuple[memoryview, SecondaryTierManager]:
    """A tier of pages of this layout and size, and its memory of one page."""
    spec = TieringOffloadingSpec(
        config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(16, ("layer",), 0),),
            worker_kv_bytes_per_block=page_bytes,
            enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": page_bytes, "secondary_tiers": [{"type": "fs", "root_dir": folder}]},
            engine_id=layout,
            model=config.OffloadingModelConfig("model", "float16"),
            cache=config.OffloadingCacheConfig(16, 1),
            parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, is_parallelism_agnostic=False),
            kv_cache_layout=layout,
        )
    )
    memory = memoryview(mmap.mmap(-1, page_bytes))
    config_of_tier = spec.secondary_tier_configs[0]
    return memory, SecondaryTierFactory.create_secondary_tier(config_of_tier, memory.cast("B", [1, page_bytes]), spec)


def look_up(tier: SecondaryTierManager) -> LookupResult:
    """The answer to a lookup, after as many steps as it takes."""
    while (answer := tier.lookup(KEY, REQUEST)) is LookupResult.RETRY:
        tier.on_schedule_end(ScheduleEndContext((), ()))
        time.sleep(0.001)
    return answer


def job(*, is_promotion: bool) -> TransferJob:
    """A job for the one page."""
    return TransferJob(0, [KEY], np.arange(1), is_promotion=is_promotion, req_context=REQUEST)


def success(tier: SecondaryTierManager) -> list[bool]:
    """Whether the jobs succeeded, after all have ended."""
    tier.drain_jobs()
    return [done.success for done in tier.get_finished_jobs()]


with tempfile.TemporaryDirectory() as place:
    written, first = open_tier(place, "NHD", 8192)
    read, second = open_tier(place, "HND", 4096)
    print("folders:", [tier.file_mapper.base_path.rpartition("/")[2] for tier in (first, second)])
    written[:] = b"N" * 8192
    first.submit_store(job(is_promotion=False))
    print("a page of 8192 bytes in the layout NHD is stored:", success(first))
    print("a page of 4096 bytes in the layout HND is looked up:", look_up(second).name)
    second.submit_load(job(is_promotion=True))
    print("it is loaded:", success(second), "and has", bytes(read).count(b"N"), "of the bytes")
    for tier in (first, second):
        tier.shutdown()
