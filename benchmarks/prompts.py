"""Prompts, and inserting them without any checks, so that the verbs cost what they cost a server."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hicache.testing.adapter import CacheAdapter
from hicache.types import InsertResult, Key, Slots, Tokens

VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The arguments of an insert: a prompt of whole pages and its slots, of which the tree owns the first `shared`."""

    key: Key
    slots: Slots
    shared: int


def random_tokens(random: np.random.Generator, prompts: int, length: int) -> Tokens:
    """Token ids, [prompts, length]. No two pages of several tokens are equal."""
    return random.integers(VOCABULARY, size=(prompts, length), dtype=np.int32)


def offer(cache: CacheAdapter, key: Key) -> Offer:
    """Match a prompt, and allocate slots for the rest of it."""
    cached = cache.match(key, chunked=False).device_indices
    fresh = cache.allocate(len(key.tokens) - len(cached))
    assert fresh is not None, f"expected room for {len(key.tokens) - len(cached)} more tokens"
    return Offer(key, np.concatenate((cached, fresh)), len(cached))


def insert(cache: CacheAdapter, offered: Offer) -> InsertResult:
    """Insert a prompt without a state."""
    return cache.insert(offered.key, offered.slots, shared=offered.shared, window_start=0, state=None, priority=0)
