"""A second opinion on LRU: blocks in a dictionary in order of use, no tree, no locks, no slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from hicache.testing.traces.format import TraceRequest
from hicache.testing.traces.runs import page_runs


def lru_hit_tokens(requests: Iterable[TraceRequest], page_size: int, capacity_tokens: int) -> int:
    """Tokens of the longest cached prefix of each request, summed, when the least recent pages go first."""
    room = capacity_tokens // page_size
    held: OrderedDict[int, int] = OrderedDict()
    hit_pages = 0
    for request in requests:
        runs = page_runs(request, page_size, begun=False)
        hit_pages += _leading_hits(held, runs)
        # The end of a prefix goes before its beginning, so the beginning is used last.
        for prefix, pages in reversed(runs):
            present = held.pop(prefix, 0)
            held[prefix] = max(present, pages)
            room -= held[prefix] - present
        while room < 0:
            room += _drop_oldest(held, -room)
    return hit_pages * page_size


def _leading_hits(held: OrderedDict[int, int], runs: list[tuple[int, int]]) -> int:
    """Pages present before the first one that is missing."""
    hits = 0
    for prefix, pages in runs:
        present = min(held.get(prefix, 0), pages)
        hits += present
        if present < pages:
            break
    return hits


def _drop_oldest(held: OrderedDict[int, int], wanted: int) -> int:
    """Take pages off the end of the least recent block; returns how many."""
    prefix = next(iter(held))
    freed = min(wanted, held[prefix])
    held[prefix] -= freed
    if not held[prefix]:
        del held[prefix]
    return freed
