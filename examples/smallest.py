"""The smallest cache: two requests with a shared prefix.

It has no model: the cache manages slots and holds no tensors, which is all that a scheduler or a simulation needs.

Run it with `python examples/smallest.py`.
"""

from __future__ import annotations

import numpy as np

import hicache
from hicache.types import Tokens

SYSTEM_PROMPT = np.arange(1000, dtype=np.int32)
FIRST_QUESTION = np.arange(2000, 2100, dtype=np.int32)
SECOND_QUESTION = np.arange(3000, 3200, dtype=np.int32)


def serve(requests: hicache.RequestManager, prompt: Tokens) -> None:
    """Find the prefix of a prompt, compute the rest, and insert all of it into the cache."""
    request = requests.admit(prompt)
    assert request is not None, f"no slots are free for {len(prompt)} tokens"
    to_compute = request.table[request.cached_tokens : len(prompt)]
    # A model would now compute these tokens and write their KV to the slots `to_compute`.
    print(f"{len(prompt)} tokens: {request.cached_tokens} from the cache, {len(to_compute)} to compute")
    requests.finish(request)


def main() -> None:
    """Serve two requests."""
    with hicache.open_cache(page_size=16, capacity_tokens=65_536) as cache:
        requests = hicache.RequestManager(cache)
        serve(requests, np.concatenate((SYSTEM_PROMPT, FIRST_QUESTION)))
        serve(requests, np.concatenate((SYSTEM_PROMPT, SECOND_QUESTION)))
        print(f"tokens on the device: {cache.sizes()['full']}")


if __name__ == "__main__":
    main()
