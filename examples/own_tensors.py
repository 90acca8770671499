"""An engine that owns its device tensors: the cache uses them, and copies nothing of its own.

The engine allocates the KV pool and writes to it. The cache decides which slot has what, backs up the slots to the
host, and loads them back into the engine's tensor.

Its tensors need torch: `pip install 'hicache[torch]'`. Run it with `python examples/own_tensors.py`.
"""

from __future__ import annotations

import numpy as np
import torch

import hicache

LAYERS, PAGE, HEADS, DIM, CAPACITY = 4, 16, 2, 8, 1024
PROMPT = np.arange(160, dtype=np.int32)


def main() -> None:
    """Open a cache on the engine's tensor, and let a prompt go to the host and back."""
    # One page more than the capacity: page 0 is the padding page, which padded tokens write to.
    pages = 1 + CAPACITY // PAGE
    # The order is that of the layout "layer_first": [layers, pages, tokens of a page, K and V, heads, elements].
    kv = torch.zeros(LAYERS, pages, PAGE, 2, HEADS, DIM, dtype=torch.bfloat16)
    with hicache.open_cache(
        page_size=PAGE,
        capacity_tokens=CAPACITY,
        model=hicache.ModelShape.hybrid(full_layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="bfloat16"),
        host=hicache.HostConfig({"full": 4 * CAPACITY}),
        tensors={"kv": [kv]},  # for each pool its tensors; a pool that is not named is allocated by the cache
    ) as cache:
        key, slots = cache.key(PROMPT), cache.allocate(len(PROMPT))
        assert slots is not None, "the cache is empty"
        by_slot = kv.view(LAYERS, pages * PAGE, 2, HEADS, DIM)
        written = torch.randn(LAYERS, len(PROMPT), 2, HEADS, DIM, dtype=torch.bfloat16)
        by_slot[:, torch.from_numpy(slots)] = written  # the engine's kernels do this
        cache.insert(key, slots)

        cache.drain()  # the backup to the host
        print("evicted from the device:", cache.evict("full", len(PROMPT)).freed)
        kv.zero_()  # other prompts overwrite the slots

        load = cache.load_back(cache.match(key).best_match)
        assert load is not None, "the host has the prompt"
        cache.drain()
        loaded = cache.claim(load.ticket)
        assert loaded is not None, "the load-back did not fail"
        print("loaded back:", len(loaded), "tokens")
        print("the same bytes in the engine's tensor:", torch.equal(by_slot[:, torch.from_numpy(loaded)], written))


if __name__ == "__main__":
    main()
