"""The page hashes that every cache must compute, worked out from their definition alone."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def page_hash_chain(tokens: Sequence[int], page_size: int, *, bigram: bool) -> list[str]:
    """The hash of each whole page without a namespace: SHA-256 of the previous digest and of the page, in hex."""
    elements = list(pairwise(tokens)) if bigram else [(token,) for token in tokens]
    hashes: list[str] = []
    digest = b""
    for start in range(0, len(elements) - page_size + 1, page_size):
        page = b"".join(struct.pack("<I", token) for pair in elements[start : start + page_size] for token in pair)
        digest = hashlib.sha256(digest + page).digest()
        hashes.append(digest.hex())
    return hashes


def tokens_of_prefix(prefix: bytes, *, bigram: bool) -> list[int]:
    """The tokens of a prefix as a snapshot gives it: 4 bytes little-endian each, or pairs that overlap by one token."""
    tokens: list[int] = np.frombuffer(prefix, dtype="<i4").tolist()
    return [tokens[0], *tokens[1::2]] if bigram and tokens else tokens
