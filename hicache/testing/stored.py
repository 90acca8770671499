"""What a prefetch must load, computed from the objects in storage for each prefix length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.types import Pool


def restorable_pages(present: Mapping[Pool, Sequence[bool]], window_pages: int) -> int:
    """The longest prefix of a range of pages that can be reused, in pages.

    `present`: for each pool of the cache and each page of the range, whether its object is in storage (MAMBA: that of
    the state at the page's end). `window_pages`: the number of pages that a window reaches into.
    """
    for count in range(len(present[Pool.KV]), 0, -1):
        needed = {
            Pool.KV: range(count),
            Pool.INDEXER: range(count),
            Pool.SWA: range(max(0, count - window_pages), count),
            Pool.MAMBA: range(count - 1, count),
        }
        if all(objects[page] for pool, objects in present.items() for page in needed[pool]):
            return count
    return 0
