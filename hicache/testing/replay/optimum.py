"""The limit of every eviction policy: Belady's optimum (MIN), which evicts the page whose next use is latest."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush

from hicache.testing.traces.format import TraceRequest, page_runs

_NEVER = 2**62


def optimal_hit_tokens(requests: Iterable[TraceRequest], page_size: int, capacity_tokens: int) -> int:
    """The most tokens that any cache of this capacity can hit. Reads the trace twice; O(n log n) in its n blocks.

    The unit is a block with the pages that end in it. A block may be kept in part, or not at all.
    Memory grows with n, by 8 bytes a block and an entry for each reuse. Exact when equal ids have equal lengths, as
    ids of whole contents do; a prefix is kept before its continuation, since it is used again earlier.
    """
    following = _following_uses(requests, page_size)
    held = _HeldBlocks(capacity_tokens // page_size)
    hit_pages = 0
    uses = (run for request in requests for run in page_runs(request, page_size, begun=False))
    for (prefix, pages), again in zip(uses, following, strict=True):
        hit_pages += held.use(prefix, pages, again)
    return hit_pages * page_size


def _following_uses(requests: Iterable[TraceRequest], page_size: int) -> array[int]:
    """For each use of a block, in order, the number of its next use."""
    following = array("q")
    latest: dict[int, int] = {}
    for request in requests:
        for prefix, _ in page_runs(request, page_size, begun=False):
            if prefix in latest:
                following[latest[prefix]] = len(following)
            latest[prefix] = len(following)
            following.append(_NEVER)
    return following


class _HeldBlocks:
    """The pages per block that the optimum keeps, ordered by next use."""

    def __init__(self, pages: int) -> None:
        self._room = pages
        self._pages: dict[int, int] = {}
        self._latest_first: list[tuple[int, int]] = []

    def use(self, prefix: int, pages: int, again: int) -> int:
        """Count the pages that are kept, and keep the block's pages if it is used again. Returns the count."""
        present = self._pages.pop(prefix, 0)
        self._room += present
        if again != _NEVER:
            self._hold(prefix, max(present, pages), again)
        return min(present, pages)

    def _hold(self, prefix: int, pages: int, again: int) -> None:
        self._pages[prefix] = pages
        self._room -= pages
        heappush(self._latest_first, (-again, prefix))
        while self._room < 0:
            self._shrink_latest()

    def _shrink_latest(self) -> None:
        """Evict pages of the block whose next use is latest."""
        _, prefix = self._latest_first[0]
        freed = min(-self._room, self._pages[prefix])
        self._pages[prefix] -= freed
        self._room += freed
        if not self._pages[prefix]:
            del self._pages[prefix]
            heappop(self._latest_first)
