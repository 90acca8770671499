"""The pages of a request by block, so that they can be counted without tokens."""

from __future__ import annotations

from itertools import accumulate

from hicache.testing.traces.format import BLOCK_TOKENS, TraceRequest


def page_runs(request: TraceRequest, page_size: int, *, begun: bool) -> list[tuple[int, int]]:
    """For each block in which pages end: a number for the prefix up to the block's end, and how many pages end in it.

    Numbers are 64-bit hashes: equal for equal prefixes. `begun`: an incomplete last page counts too.
    """
    length = request.input_length + (-request.input_length % page_size if begun else 0)
    last = len(request.hash_ids)
    runs = []
    pages = 0
    for place, prefix in enumerate(accumulate(request.hash_ids, _extend), start=1):
        ended = (length if place == last else place * BLOCK_TOKENS) // page_size
        if ended > pages:
            runs.append((prefix, ended - pages))
            pages = ended
    return runs


def _extend(prefix: int, block: int) -> int:
    return hash((prefix, block))
