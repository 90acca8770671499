"""mlx-lm 0.32.2: what the prompt cache does after an exact hit, after a hit, and with a prompt cut from a longer one.

Usage: python mlx_lm_prompt_cache.py
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, LRUPromptCache


def computed(tokens: int, cache: list[Any] | None = None) -> list[Any]:
    """The cache of a model of one layer that has computed so many tokens, beside those in `cache`."""
    cache = cache or [KVCache()]
    cache[0].update_and_fetch(mx.zeros((1, 1, tokens, 8)), mx.zeros((1, 1, tokens, 8)))
    return cache


def rest_of_an_exact_hit() -> list[int]:
    """The tokens that are left to compute of a prompt that is cached to its last token."""
    prompts = LRUPromptCache()
    prompts.insert_cache("model", [1, 2, 3], computed(3))
    rest: list[int] = prompts.fetch_nearest_cache("model", [1, 2, 3])[1]
    return rest


def evicted_after_a_hit() -> str:
    """Which of two prompts is evicted for a third one: the older one hit since."""
    prompts = LRUPromptCache(max_size=2)
    prompts.insert_cache("model", [1, 2], computed(2))
    prompts.insert_cache("model", [3, 4], computed(2))
    prompts.fetch_nearest_cache("model", [1, 2, 9])
    prompts.insert_cache("model", [5, 6], computed(2))
    return "the unused one" if prompts.fetch_nearest_cache("model", [3, 4, 9])[0] is None else "the one that hit"


def bytes_of_a_cut_prompt() -> tuple[int, int]:
    """The bytes of a cached prompt of 4096 tokens, and of one of two tokens that began with its first one."""
    prompts = LRUPromptCache()
    prompts.insert_cache("model", list(range(4096)), computed(4096))
    long = prompts.nbytes
    cache, rest = prompts.fetch_nearest_cache("model", [0, 9])
    prompts.insert_cache("model", [0, 9], computed(len(rest), cache))
    return long, prompts.nbytes - long


def main() -> None:
    """Print all three."""
    rest, evicted, sizes = rest_of_an_exact_hit(), evicted_after_a_hit(), bytes_of_a_cut_prompt()
    print("to compute after an exact hit:", rest)
    print("evicted for a third prompt:", evicted)
    print("bytes of 4096 tokens, and of two:", *sizes)
    assert rest, "a prompt that is cached to its last token leaves nothing to compute"
    assert evicted == "the unused one", "the prompt that hit was evicted"
    assert sizes[1] < sizes[0], "a prompt of two tokens has the memory of the longer one"


if __name__ == "__main__":
    main()
