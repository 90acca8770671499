"""Prompts for tests: whole pages named by small integers, and the lengths that a key has in elements and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hicache.config import CacheConfig
from hicache.types import Key, Namespace


def make_key(tokens: Iterable[int], namespace: Namespace) -> Key:
    """A key from any tokens."""
    return Key(np.array(tokens if isinstance(tokens, np.ndarray) else list(tokens), dtype=np.int32), namespace)


def page_tokens(pages: Sequence[int], config: CacheConfig) -> list[int]:
    """The tokens of a prompt of exactly these pages: equal numbers give equal pages, unequal ones differ at once.

    With bigram keys one token stands before them, so that each pair ends in its own page: the pairs of a page then
    depend on that page and on the one before it, and two prompts part at the page where their numbers part.
    """
    size = config.page_size
    opening = [0] if config.bigram else []
    return opening + [page * size + offset for page in pages for offset in range(1, size + 1)]


def element_count(key: Key, config: CacheConfig) -> int:
    """How many elements a key has: its tokens, or with bigram keys one less."""
    return max(len(key.tokens) - 1, 0) if config.bigram else len(key.tokens)


def aligned_count(key: Key, config: CacheConfig) -> int:
    """A key's elements floored to whole pages."""
    return element_count(key, config) // config.page_size * config.page_size


def cut(key: Key, elements: int, config: CacheConfig) -> Key:
    """The beginning of a key, so many elements of it."""
    tokens = elements + 1 if config.bigram and elements else elements
    return Key(key.tokens[:tokens], key.namespace)
