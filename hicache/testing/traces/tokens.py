"""The tokens of a request, derived from its block ids, as a trace has no text."""

from __future__ import annotations

import numpy as np

from hicache.testing.traces.format import BLOCK_IDS, BLOCK_TOKENS, TraceRequest
from hicache.types import Tokens

_STEPS = np.arange(BLOCK_TOKENS, dtype=np.uint32) * np.uint32(0x9E3779B1)
_LOW_BITS = np.uint32(BLOCK_IDS - 1)


def request_tokens(request: TraceRequest) -> Tokens:
    """Token ids, int32, shape [input_length], none negative.

    Token i of block b is `(b + i * constant) mod 2**31`: a function of b alone. Two blocks differ in every token, so
    that they never share a page of any size.
    """
    blocks = np.asarray(request.hash_ids, dtype=np.uint32)
    tokens = (blocks[:, np.newaxis] + _STEPS) & _LOW_BITS
    return tokens.view(np.int32).reshape(-1)[: request.input_length]
