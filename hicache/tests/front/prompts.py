"""A prompt in a cache, and the bytes of its pages in every pool."""

from __future__ import annotations

import numpy as np

from hicache.cache import UnifiedRadixCache
from hicache.config import BufferShape, Follows, ModelShape, PoolShape
from hicache.pools.buffers import RawBytes, TierPools
from hicache.types import Namespace, Slots, Tokens

PAGE = 16
PROMPT: Tokens = np.arange(4 * PAGE, dtype=np.int32)

KV = PoolShape("kv", Follows.EVERY_PAGE, 2, (BufferShape("kv", (2, 2, 4), "float32"),))
KV_ONLY = ModelShape((KV,))


def insert_prompt(cache: UnifiedRadixCache, tokens: Tokens = PROMPT, namespace: Namespace | None = None) -> Slots:
    """Allocate slots for a prompt and insert it; the slots."""
    slots = cache.allocate(len(tokens))
    assert slots is not None, f"no slots for {len(tokens)} tokens, the cache has {cache.sizes()}"
    result = cache.insert(cache.key(tokens, namespace), slots)
    assert result.accepted_length == len(tokens), f"expected {len(tokens)} tokens to be accepted, got {result}"
    return slots


def load_prompt_back(cache: UnifiedRadixCache) -> Slots:
    """Load the prompt back from the host; its slots."""
    found = cache.match(cache.key(PROMPT))
    assert found.host_hit_length == len(PROMPT), f"expected all of the prompt on the host alone, got {found}"
    load = cache.load_back(found.best_match)
    assert load is not None, "a load-back of the whole prompt is worth it"
    cache.drain()
    slots = cache.claim(load.ticket)
    assert slots is not None, "the load-back failed"
    assert np.array_equal(slots, load.indices), f"promised were the slots {load.indices}, the tree has {slots}"
    return slots


def fill(pools: TierPools, slots: Slots) -> None:
    """Write random bytes to the pages of some FULL slots, in every pool."""
    random = np.random.default_rng(seed=7)
    for name, own in _pool_slots(pools, slots).items():
        buffers = pools.buffers[name]
        for layer in range(buffers.spec.layers):
            buffers.write(own, layer, random.integers(1, 256, (len(own), buffers.spec.slot_bytes), dtype=np.uint8))


def read(pools: TierPools, slots: Slots) -> dict[str, RawBytes]:
    """The bytes of the pages of some FULL slots, by pool: uint8 [layers, entries, bytes of an entry]."""
    return {
        name: np.stack([pools.buffers[name].read(own, layer) for layer in range(pools.buffers[name].spec.layers)])
        for name, own in _pool_slots(pools, slots).items()
    }


def erase(pools: TierPools) -> None:
    """Overwrite every byte of every pool."""
    for buffers in pools.buffers.values():
        for raw in buffers.raw:
            raw.fill_(0)


def _pool_slots(pools: TierPools, slots: Slots) -> dict[str, Slots]:
    """The entries of whole pages in each pool: those with one entry for several tokens have fewer in a page."""
    pages = slots[:: pools.page_size] // pools.page_size
    return {
        name: (pages[:, None] * buffers.page_size + np.arange(buffers.page_size)).reshape(-1)
        for name, buffers in pools.buffers.items()
    }
