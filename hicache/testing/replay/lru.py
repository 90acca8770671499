"""An independent LRU: blocks in a dictionary in order of use, without tree, locks or slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from hicache.testing.traces.format import TraceRequest, page_runs


def lru_hit_tokens(requests: Iterable[TraceRequest], page_size: int, capacity_tokens: int) -> int:
    """Tokens of the longest cached prefix of each request, summed, when the least recently used pages are evicted."""
    room = capacity_tokens // page_size
    held: OrderedDict[int, int] = OrderedDict()
    hit_pages = 0
    for request in requests:
        runs = page_runs(request, page_size, begun=False)
        hit_pages += _leading_hits(held, runs)
        # A prefix is evicted from its end, so its first blocks must be the most recently used.
        for prefix, pages in reversed(runs):
            present = held.pop(prefix, 0)
            held[prefix] = max(present, pages)
            room -= held[prefix] - present
        while room < 0:
            room += _drop_oldest(held, -room)
    return hit_pages * page_size


def _leading_hits(held: OrderedDict[int, int], runs: list[tuple[int, int]]) -> int:
    """The number of pages present before the first missing one."""
    hits = 0
    for prefix, pages in runs:
        present = min(held.get(prefix, 0), pages)
        hits += present
        if present < pages:
            break
    return hits


def _drop_oldest(held: OrderedDict[int, int], wanted: int) -> int:
    """Evict pages from the end of the least recently used block; returns how many."""
    prefix = next(iter(held))
    freed = min(wanted, held[prefix])
    held[prefix] -= freed
    if not held[prefix]:
        del held[prefix]
    return freed
