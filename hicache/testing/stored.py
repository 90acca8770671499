"""What a prefetch must bring, worked out from which objects there are, length by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.types import Pool


def restorable_pages(present: Mapping[Pool, Sequence[bool]], window_pages: int) -> int:
    """The longest prefix of a stretch that could be used again, in pages.

    `present`: for each pool of the cache, of each page of the stretch whether its object is there (for MAMBA: of the
    state at its end). `window_pages`: pages that a window reaches into.
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
