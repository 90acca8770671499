"""Prompts for tests: whole pages named by small integers, and the length of a key in elements and pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from hicache.config import CacheConfig
from hicache.types import Key, Namespace


def make_key(tokens: Iterable[int], namespace: Namespace) -> Key:
    """Make a key from any tokens."""
    return Key(np.array(tokens if isinstance(tokens, np.ndarray) else list(tokens), dtype=np.int32), namespace)


TOP_ID = 2**31 - 1
"""The largest token id. Page 1 consists of this and the ids below it."""

FIRST_BITS = (16, 24, 0)
"""Bits that pages differ in first: such ids are equal in the low 16 bits, equal in the low 24 bits, or neighbours."""


def page_tokens(pages: Sequence[int], config: CacheConfig) -> list[int]:
    """The tokens of a prompt of exactly these pages: equal numbers give equal pages, unequal ones similar pages.

    Each page differs from page 1 in a few bits of one token: the middle, the first or the last one. Some pages are
    permutations of each other. So a cache that identifies a page by a part of its tokens, by their sum or by some of
    their bits takes one page for another. With bigram keys one more token precedes the pages, so that each pair ends
    in its own page, and two prompts diverge at the page where their numbers differ. Raises ValueError for a negative
    number.
    """
    opening = [0] if config.bigram else []
    return opening + [token for page in pages for token in _page(page, config.page_size)]


def page_numbers(tokens: Sequence[int], config: CacheConfig) -> tuple[int, ...]:
    """The numbers of the pages that `page_tokens` made these tokens of. Raises ValueError for any other page."""
    size, opening = config.page_size, int(config.bigram)
    return tuple(_number(tokens[start : start + size]) for start in range(opening, len(tokens), size))


@cache
def _page(number: int, size: int) -> tuple[int, ...]:
    if number < 0:
        raise ValueError(f"expected a page number of 0 or more, got {number}")
    tokens, places = _first_page(size), _places(size)
    order = 1 - number if number <= 1 else number
    if order:
        code, place = divmod(order - 1, len(places))
        tokens[places[place]] ^= _spread(code + 1)
    return tuple(tokens)


def _number(page: Sequence[int]) -> int:
    places = _places(len(page))
    changes = {at: token ^ own for at, (token, own) in enumerate(zip(page, _first_page(len(page)), strict=True))}
    changed = [at for at, bits in changes.items() if bits]
    if not changed:
        return 1
    if len(changed) > 1 or changed[0] not in places:
        raise ValueError(f"expected a page of `page_tokens`, got {list(page)}")
    order = (_gathered(changes[changed[0]]) - 1) * len(places) + places.index(changed[0]) + 1
    return 0 if order == 1 else order


def _first_page(size: int) -> list[int]:
    """Page 1. Its first and last tokens are equal, so that a change of either gives a permutation."""
    return [TOP_ID - at % max(size - 1, 1) for at in range(size)]


def _places(size: int) -> list[int]:
    """Where pages differ from page 1."""
    return list(dict.fromkeys([size // 2, 0, size - 1]))


def _spread(code: int) -> int:
    """The bits of a code at their places in a token id: bit 0 at the first of FIRST_BITS, bit 3 after it, and so on."""
    return sum(1 << FIRST_BITS[at % 3] + at // 3 for at in range(code.bit_length()) if code >> at & 1)


def _gathered(bits: int) -> int:
    """The code that `_spread` gives these bits for."""
    places = [FIRST_BITS[at % 3] + at // 3 for at in range(3 * 7)]
    return sum(1 << at for at, place in enumerate(places) if bits >> place & 1)


def element_count(key: Key, config: CacheConfig) -> int:
    """The number of elements of a key: its tokens, or with bigram keys one less."""
    return max(len(key.tokens) - 1, 0) if config.bigram else len(key.tokens)


def aligned_count(key: Key, config: CacheConfig) -> int:
    """The number of elements of a key, rounded down to whole pages."""
    return element_count(key, config) // config.page_size * config.page_size


def cut(key: Key, elements: int, config: CacheConfig) -> Key:
    """The first `elements` elements of a key."""
    tokens = elements + 1 if config.bigram and elements else elements
    return replace(key, tokens=key.tokens[:tokens])
