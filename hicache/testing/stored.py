"""What a prefetch must load, computed from the objects in storage for each prefix length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hicache.types import Pool


def restorable_pages(present: Mapping[str, Sequence[bool]], window_pages: int) -> int:
    """The longest prefix of a range of pages that can be reused, in pages.

    `present`: for each pool of the cache and each page of the range, whether its object is in storage (MAMBA: that of
    the state at the page's end). `window_pages`: the number of pages that a window reaches into.
    """
    # A prefix needs all its pages of these pools, so none is longer than the first page that one of them lacks.
    whole = [objects for pool, objects in present.items() if pool not in (Pool.SWA, Pool.MAMBA)]
    longest = min(next((page for page, is_there in enumerate(one) if not is_there), len(one)) for one in whole)
    for count in range(longest, 0, -1):
        tails = {Pool.SWA: range(max(0, count - window_pages), count), Pool.MAMBA: range(count - 1, count)}
        if all(present[pool][page] for pool, pages in tails.items() if pool in present for page in pages):
            return count
    return 0
