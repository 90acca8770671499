"""Prompts for tests: whole pages named by small integers, and the length of a key in elements and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hicache.config import CacheConfig
from hicache.types import Key, Namespace


def make_key(tokens: Iterable[int], namespace: Namespace) -> Key:
    """Make a key from any tokens."""
    return Key(np.array(tokens if isinstance(tokens, np.ndarray) else list(tokens), dtype=np.int32), namespace)


def page_tokens(pages: Sequence[int], config: CacheConfig) -> list[int]:
    """The tokens of a prompt of exactly these pages: equal numbers give equal pages, unequal ones differ at once.

    With bigram keys one more token precedes them, so that each pair ends in its own page: then the pairs of a page
    depend on that page and the one before it, and two prompts diverge at the page where their numbers differ.
    """
    size = config.page_size
    opening = [0] if config.bigram else []
    return opening + [page * size + offset for page in pages for offset in range(1, size + 1)]


def element_count(key: Key, config: CacheConfig) -> int:
    """The number of elements of a key: its tokens, or with bigram keys one less."""
    return max(len(key.tokens) - 1, 0) if config.bigram else len(key.tokens)


def aligned_count(key: Key, config: CacheConfig) -> int:
    """The number of elements of a key, rounded down to whole pages."""
    return element_count(key, config) // config.page_size * config.page_size


def cut(key: Key, elements: int, config: CacheConfig) -> Key:
    """The first `elements` elements of a key."""
    tokens = elements + 1 if config.bigram and elements else elements
    return Key(key.tokens[:tokens], key.namespace)
