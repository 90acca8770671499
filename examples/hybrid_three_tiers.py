"""A hybrid model on three tiers: device, host and files.

A prompt is computed once. It is loaded back from the host after its eviction from the device, and read from storage
after a restart. Each time all its bytes are compared: KV, sliding-window KV and the Mamba state.

Its tensors need torch: `pip install 'hicache[torch]'`. Run it with `python examples/hybrid_three_tiers.py`.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

import numpy as np

import hicache

PAGE, WINDOW, PREFIX = 16, 64, 512
PROMPT = np.arange(PREFIX + 1, dtype=np.int32)  # of a prompt the last token is always computed
LAYERS = {"full_layers": 2, "swa_layers": 3, "mamba_layers": 2}
ITEMS = {"kv_heads": 2, "head_dim": 8, "conv_elements": 16, "state_elements": 32}
CONFIG = hicache.CacheConfig(
    components=("full", "swa", "mamba"),
    page_size=PAGE,
    sliding_window_size=WINDOW,
    mamba_chunk_size=64,
    capacity_tokens={"full": 4096, "swa": 4096, "mamba": 8},  # of "mamba" it is states
    host=hicache.HostConfig({"full": 8192, "swa": 8192, "mamba": 16}),
    model=hicache.ModelShape.hybrid(dtype="bfloat16", is_mla=False, **LAYERS, **ITEMS),
)


def serve(cache: hicache.UnifiedRadixCache, *, to_compute: bool) -> bytes:
    """Serve the prompt once, with random bytes in place of a model; the bytes of its prefix in all pools and layers."""
    requests, random = hicache.RequestManager(cache), np.random.default_rng(seed=1)
    request = requests.admit(PROMPT)
    assert request is not None, "there are slots for one prompt"
    while not requests.resume(request):
        cache.drain()  # a load-back from the host
    assert request.cached_tokens == (0 if to_compute else PREFIX), f"{request.cached_tokens} tokens were cached"
    window = request.table[PREFIX - WINDOW : PREFIX]
    swa = cache.pools.partners(window[::PAGE] // PAGE).repeat(PAGE) * PAGE + window % PAGE
    slots = {"kv": request.table[:PREFIX], "swa": swa, "mamba": np.array([request.state])}
    read = []
    for name, pool in cache.pools.buffers.items():
        for layer in range(pool.spec.layers):
            if to_compute:
                data = random.integers(0, 256, (len(slots[name]), pool.spec.slot_bytes), dtype=np.uint8)
                pool.write(slots[name], layer, data)
            read.append(pool.read(slots[name], layer).tobytes())
    requests.checkpoint(request, PREFIX)  # the state is the one after PREFIX tokens: it is inserted here
    requests.finish(request)
    return b"".join(read)


def main() -> None:
    """Compute the prompt once, and read it from each tier."""
    with TemporaryDirectory() as root:
        # The configuration of a real model is its config.json, and the revision that of its weights.
        fingerprint = hicache.fingerprint_of_model({"model_type": "example"}, revision="1")
        storage = hicache.StorageConfig("file", "org/name", {"root": root}, model_fingerprint=fingerprint)
        with hicache.open_cache(CONFIG, storage=storage) as cache:
            written = serve(cache, to_compute=True)
            print("device: the same bytes:", serve(cache, to_compute=False) == written)
            cache.drain()  # backup to the host, and writing to storage
            print("evicted from the device:", cache.evict("full", PREFIX).freed)
            print("host: the same bytes:", serve(cache, to_compute=False) == written)
        with hicache.open_cache(CONFIG, storage=storage) as cache:
            operation = cache.prefetch(cache.key(PROMPT))
            assert operation is not None, "the prompt is longer than prefetch_threshold"
            cache.drain()
            print("tokens prefetched from storage:", cache.check_prefetch(operation))
            print("storage: the same bytes:", serve(cache, to_compute=False) == written)


if __name__ == "__main__":
    main()
