"""The tokens of a request, derived from its block ids: a trace holds no text."""

from __future__ import annotations

import numpy as np

from hicache.testing.traces.format import BLOCK_IDS, BLOCK_TOKENS, TraceRequest
from hicache.types import Tokens

_STEPS = np.arange(BLOCK_TOKENS, dtype=np.uint32) * np.uint32(0x9E3779B1)
_LOW_BITS = np.uint32(BLOCK_IDS - 1)


def request_tokens(request: TraceRequest) -> Tokens:
    """Token ids, int32, shape [input_length], none negative.

    Block b reads `(b + i * constant) mod 2**31` at its i-th place: a function of b alone, and two blocks differ in
    every place, so that they never share a page, however small.
    """
    blocks = np.asarray(request.hash_ids, dtype=np.uint32)
    tokens = (blocks[:, np.newaxis] + _STEPS) & _LOW_BITS
    return tokens.view(np.int32).reshape(-1)[: request.input_length]
