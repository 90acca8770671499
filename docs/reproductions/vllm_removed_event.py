"""vLLM 0.33.0 reports a block as removed while an equal block stays cached and is found.

It needs vLLM alone, no GPU and no model. Run it with `python docs/reproductions/vllm_removed_event.py`.
It prints the events of the cache, and what a request finds after them.
"""

from __future__ import annotations

import torch
from vllm.pooling_params import PoolingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK = 4

init_none_hash(sha256_cbor)
register_all_kvcache_specs(None)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float16)
cache = KVCacheManager(
    KVCacheConfig(num_blocks=6, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]),
    max_model_len=100,
    scheduler_block_size=BLOCK,
    hash_block_size=BLOCK,
    enable_kv_cache_events=True,
)
hasher = get_request_block_hasher(BLOCK, sha256_cbor)


def new_request(name: str, tokens: list[int]) -> Request:
    """A request for these tokens."""
    return Request(name, tokens, None, PoolingParams(), block_hasher=hasher)


def show_events() -> None:
    """Print the events since the last call."""
    for event in cache.take_events():
        names = [hex(block) if isinstance(block, int) else block.hex() for block in event.block_hashes]
        print(f"  {type(event).__name__} {[name[-8:] for name in names]}")


prompt = [1, 2, 3, 4]
for name in ("first", "second"):
    # The last token of a prompt is computed in any case, so a prompt of one block finds nothing of itself.
    request = new_request(name, prompt)
    blocks, cached, _ = cache.get_computed_blocks(request)
    cache.allocate_slots(request, len(prompt) - cached, cached, blocks)
    print(f"{name} request: block {cache.get_block_ids(name)[0]}, {cached} tokens from the cache")
    cache.free(request)
show_events()

other = new_request("other", list(range(100, 116)))
cache.allocate_slots(other, other.num_tokens)
print(f"another request takes the blocks {cache.get_block_ids('other')[0]}")
show_events()

_, cached, _ = cache.get_computed_blocks(new_request("third", [*prompt, 5]))
print(f"a third request finds {cached} of the tokens {prompt}")
