"""Pages to keep and memory to read them into, in pieces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hicache.storage.base import Pieces

PAGE_BYTES = 10_000
CUTS = (0, 4_096, 4_097, 9_000, PAGE_BYTES)
SCOPE = "tiny-1"


def page(seed: int, size: int = PAGE_BYTES) -> bytes:
    """Bytes that no other seed gives."""
    return np.random.default_rng(seed).bytes(size)


def in_pieces(content: bytes | bytearray) -> Pieces:
    """The memory of a page, cut at odd places."""
    whole = memoryview(content)
    cuts = [cut for cut in CUTS if cut < len(content)] + [len(content)]
    return [whole[begin:end] for begin, end in pairwise(cuts)]


def keys_of(count: int) -> list[str]:
    """Names such as a cache gives."""
    return [f"kv.tp0of1/{number:064x}" for number in range(count)]
