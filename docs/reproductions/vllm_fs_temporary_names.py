"""vLLM 0.33.0: two instances with the same seed write to the same temporary files, and lose each other's pages.

It needs vLLM alone, no GPU and no model. Run it with `python docs/reproductions/vllm_fs_temporary_names.py`.
It prints what is left of a writer that is killed, and the answers of writers after it and at the same time.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import signal
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
from vllm.v1.kv_offload import config
from vllm.v1.kv_offload.base import ReqContext, make_offload_key
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

SEED = 0  # of a model, by default
PAGE, PAGES = 128 << 20, 2  # so large that a writer is met in the middle of one
FORK = multiprocessing.get_context("fork")


def store(folder: str, name: str, times: int, start: Barrier | None = None) -> None:
    """Open a tier as an engine of one GPU does, and store the same pages several times."""
    # As `set_random_seed` of vllm.utils.torch_utils: the worker calls it in the process of the scheduler.
    random.seed(SEED)
    spec = TieringOffloadingSpec(
        config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(16, ("layer",), 0),),
            worker_kv_bytes_per_block=PAGE,
            enable_kv_cache_events=False,
            extra_config={"cpu_bytes_to_use": PAGE * PAGES, "secondary_tiers": [{"type": "fs", "root_dir": folder}]},
            engine_id=name,
            model=config.OffloadingModelConfig("model", "float16"),
            cache=config.OffloadingCacheConfig(16, 1),
            parallel=config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, is_parallelism_agnostic=False),
        )
    )
    memory = memoryview(mmap.mmap(-1, PAGE * PAGES)).cast("B", [PAGES, PAGE])
    tier = SecondaryTierFactory.create_secondary_tier(spec.secondary_tier_configs[0], memory, spec)
    keys = [make_offload_key(bytes([page]) * 32, 0) for page in range(PAGES)]
    if start is not None:
        start.wait()
    for number in range(times):
        job = TransferJob(number, keys, np.arange(PAGES), is_promotion=False, req_context=ReqContext("one"))
        tier.submit_store(job)
        tier.drain_jobs()
        print(f"  {name}, job {number}:", ["stored" if done.success else "lost" for done in tier.get_finished_jobs()])
    tier.shutdown()


def files(folder: str, ending: str) -> list[Path]:
    """The files below a folder with this ending, but for those of the probe at the start."""
    return [path for path in sorted(Path(folder).rglob(f"*{ending}")) if not path.name.startswith(".")]


def one_after_the_other(folder: str) -> None:
    """Kill a writer in the middle of a page, and start it again."""
    first = FORK.Process(target=store, args=(folder, "first", 1))
    first.start()
    while first.is_alive() and not files(folder, ".tmp"):
        time.sleep(0)
    os.kill(first.pid or 0, signal.SIGKILL)
    first.join()
    print("killed while it stored, it left:", [path.name[64:] for path in files(folder, ".tmp")])
    second = FORK.Process(target=store, args=(folder, "started again", 2))
    second.start()
    second.join()


def at_the_same_time(folder: str) -> None:
    """Let two writers store the same pages."""
    start = FORK.Barrier(2)
    writers = [FORK.Process(target=store, args=(folder, name, 1, start)) for name in ("left", "right")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    print(f"pages that are there: {len(files(folder, '.bin'))} of {PAGES}")


if __name__ == "__main__":
    for act in (one_after_the_other, at_the_same_time):
        print(act.__name__.replace("_", " "), flush=True)
        with tempfile.TemporaryDirectory() as place:
            act(place)
