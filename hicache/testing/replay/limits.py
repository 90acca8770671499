"""What a trace allows: its totals, and the hits of a simple LRU and of Belady's optimum with the same capacity."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from hicache.config import CacheConfig
from hicache.testing.traces import Trace
from hicache.testing.traces.format import TraceRequest, page_runs
from hicache.types import Component

_NEVER = 2**62


@dataclass(frozen=True, slots=True)
class Survey:
    """Totals of a trace.

    `footprint_tokens`: the slots for all distinct pages. An incomplete last page counts as a whole page.
    """

    requests: int
    input_tokens: int
    footprint_tokens: int


def survey(requests: Iterable[TraceRequest], page_size: int) -> Survey:
    """Read the trace once. Memory is one number per distinct block."""
    count = input_tokens = 0
    pages_of: dict[int, int] = {}
    for request in requests:
        count += 1
        input_tokens += request.input_length
        for prefix, pages in page_runs(request, page_size, begun=True):
            pages_of[prefix] = max(pages, pages_of.get(prefix, 0))
    return Survey(requests=count, input_tokens=input_tokens, footprint_tokens=sum(pages_of.values()) * page_size)


class Seen:
    """The prompts that were served: what a cache would hold that never loses a page."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._pages: dict[int, int] = {}

    def add(self, request: TraceRequest) -> int:
        """How many tokens of a prompt an earlier one began with, in whole pages. From now on it is an earlier one."""
        runs = page_runs(request, self._page_size, begun=False)
        tokens = _leading_hits(self._pages, runs) * self._page_size
        for prefix, pages in runs:
            self._pages[prefix] = max(pages, self._pages.get(prefix, 0))
        return tokens


@dataclass(frozen=True, slots=True)
class Limits:
    """Tokens hit by block-level LRU with the capacity of the device and of all tiers, and by Belady's optimum.

    The optimum has the capacity of all tiers.
    """

    device_lru_tokens: int
    lru_tokens: int
    optimal_tokens: int


def limits(trace: Trace, config: CacheConfig) -> Limits:
    """Compute the limits. Streams the trace three times, and once more with a host tier."""
    device_tokens = all_tokens = config.capacity_tokens[Component.FULL]
    device_lru = lru = lru_hit_tokens(trace, config.page_size, device_tokens)
    if config.host is not None:
        all_tokens += config.host.capacity_tokens[Component.FULL]
        lru = lru_hit_tokens(trace, config.page_size, all_tokens)
    return Limits(device_lru, lru, optimal_hit_tokens(trace, config.page_size, all_tokens))


def lru_hit_tokens(requests: Iterable[TraceRequest], page_size: int, capacity_tokens: int) -> int:
    """Tokens of the longest cached prefix of each request, summed, when the least recently used pages are evicted.

    The LRU is independent of any cache: blocks in a dictionary in order of use, without tree, locks or slots.
    """
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


def _leading_hits(held: Mapping[int, int], runs: list[tuple[int, int]]) -> int:
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


def optimal_hit_tokens(requests: Iterable[TraceRequest], page_size: int, capacity_tokens: int) -> int:
    """The most tokens that any cache of this capacity can hit. Reads the trace twice; O(n log n) in its n blocks.

    Belady's optimum (MIN) evicts the page whose next use is latest.

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
