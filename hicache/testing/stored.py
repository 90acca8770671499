"""What a prefetch must load, computed from the objects in storage for each prefix length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.types import Pool


def restorable_pages(present: Mapping[str, Sequence[bool]], window_pages: int) -> int:
    """The longest prefix of a range of pages that can be reused, in pages.

    `present`: for each pool of the cache and each page of the range, whether its object is in storage (MAMBA: that of
    the state at the page's end). `window_pages`: the number of pages that a window reaches into.
    """
    for count in range(len(present[Pool.KV]), 0, -1):
        window, state = range(max(0, count - window_pages), count), range(count - 1, count)
        tails: dict[str, range] = {Pool.SWA: window, Pool.MAMBA: state}
        if all(objects[page] for pool, objects in present.items() for page in tails.get(pool, range(count))):
            return count
    return 0
