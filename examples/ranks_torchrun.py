"""Two tensor-parallel ranks with one tree: every rank makes the same calls, and finds the same.

Each rank has its half of the KV heads. The ranks take what both can serve: rank 1 has less host memory here. Threads
copy at different speeds on each rank, and `step` and `drain` take over what has ended on both.

Its ranks need torch: `pip install 'hicache[ranks]'`.
Run it with `torchrun --nproc-per-node 2 examples/ranks_torchrun.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import distributed
from torch.distributed import rendezvous  # type: ignore[attr-defined]

import hicache

PROMPT = np.arange(160, dtype=np.int32)
MODEL = hicache.ModelShape.hybrid(full_layers=2, kv_heads=4, head_dim=8, dtype="bfloat16")


def serve(cache: hicache.UnifiedRadixCache) -> dict[str, Any]:
    """Insert a prompt, evict it from the device, and load it back; what this rank saw."""
    key, slots = cache.key(PROMPT), cache.allocate(len(PROMPT))
    assert slots is not None, "the cache is empty"
    cache.insert(key, slots)
    cache.drain()  # the backup
    freed = cache.evict("full", len(PROMPT)).freed
    load = cache.load_back(cache.match(key).best_match)
    assert load is not None, "the host has the prompt"
    cache.drain()
    loaded = cache.claim(load.ticket)
    assert loaded is not None, "the load-back did not fail"
    host = cache.host_sizes()["full"]
    capacity = host.evictable + host.protected + host.free
    return {"freed": freed, "loaded": loaded.tolist(), "capacity": capacity}


def main() -> None:
    """Be one of the ranks that torchrun started."""
    # The store of torchrun outlives each rank. It tells the ranks that are left which one died.
    store, rank, size = next(rendezvous("env://"))
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    topology = hicache.Topology(tp_rank=rank, tp_size=size)
    with (
        hicache.open_groups(topology, store, "cpu", timeout_s=60) as groups,
        hicache.open_cache(
            page_size=16,
            capacity_tokens=1024,
            model=MODEL,
            host=hicache.HostConfig({"full": 4096 if rank == 0 else 2048}),
            topology=topology,
            groups=groups,
        ) as cache,
    ):
        own = serve(cache)
    of_ranks: list[Any] = [None] * size
    distributed.all_gather_object(of_ranks, own)
    if rank == 0:
        print(f"loaded back: {len(own['loaded'])} tokens, host capacity: {own['capacity']} tokens")
        print(f"{size} ranks agree:", all(other == own for other in of_ranks))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
