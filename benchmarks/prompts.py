"""Prompts, and putting them into a cache with nothing checked on the way: the verbs cost what they cost a server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache.testing.adapter import CacheAdapter
from hicache.types import InsertResult, Key, Slots, Tokens

VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """What an insert takes: a prompt of whole pages and its slots, of which the first `shared` are the tree's own."""

    key: Key
    slots: Slots
    shared: int


def random_tokens(random: np.random.Generator, prompts: int, length: int) -> Tokens:
    """Token ids, [prompts, length]. No two pages of several tokens are alike."""
    return random.integers(VOCABULARY, size=(prompts, length), dtype=np.int32)


def offer(cache: CacheAdapter, key: Key) -> Offer:
    """Match a prompt, and take slots for the rest."""
    cached = cache.match(key, chunked=False).device_indices
    fresh = cache.allocate(len(key.tokens) - len(cached))
    assert fresh is not None, f"the cache has no room for {len(key.tokens) - len(cached)} tokens more"
    return Offer(key, np.concatenate((cached, fresh)), len(cached))


def insert(cache: CacheAdapter, offered: Offer) -> InsertResult:
    """Hand a prompt over, without a state."""
    return cache.insert(offered.key, offered.slots, shared=offered.shared, window_start=0, state=None, priority=0)
