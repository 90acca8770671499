"""The uses of prefixes: the hits that a match adds to nodes, and what a policy knows of each page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hicache.config import CacheConfig, EvictionPolicy, Recency
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Namespace, Tier

Place = tuple[Namespace, bytes]
"""A prefix in its namespace."""

Rank = tuple[int, ...]
"""A place in an order: what has the smallest rank goes first."""

PROTECTED_HITS = 1
"""EVICT-2: the number of hits from which SLRU counts a node as protected."""


def hits_by_page(snapshot: Snapshot, page_size: int) -> dict[Place, int]:
    """For each page of the tree the hits of its node, if the cache counts them."""
    hits: dict[Place, int] = {}
    for number, node in enumerate(snapshot.nodes):
        if node.hits is not None:
            hits.update(dict.fromkeys(pages_of(snapshot, number, page_size), node.hits))
    return hits


def require_hits(before: dict[Place, int], after: dict[Place, int], used: Place | None) -> None:
    """HOST-1, EVICT-2: a match is one hit of every page up to its end; a chunked match (`used` is None) is none."""
    expected = {
        place: count + (used is not None and place[0] == used[0] and used[1].startswith(place[1]))
        for place, count in before.items()
    }
    wrong = {place: (count, after.get(place)) for place, count in expected.items() if after.get(place) != count}
    assert not wrong, f"HOST-1: hits after a match differ, (expected, actual) by place: {wrong}"


def place_of(snapshot: Snapshot, number: int) -> Place:
    """Where a node of a snapshot ends."""
    return snapshot.nodes[number].namespace, snapshot.prefix(number)


def pages_of(snapshot: Snapshot, number: int, page_size: int) -> list[Place]:
    """The ends of a node's own pages."""
    node, prefix = snapshot.nodes[number], snapshot.prefix(number)
    page_bytes = len(node.segment) // (node.end - node.start) * page_size
    first = len(prefix) - len(node.segment) + page_bytes
    return [(node.namespace, prefix[:end]) for end in range(first, len(prefix) + 1, page_bytes)]


@dataclass(frozen=True, slots=True)
class Span:
    """A number that the contract leaves open within bounds."""

    low: int
    high: int


@dataclass(slots=True)
class PageLog:
    """What is known of one page since it is cached.

    `created`: when it came. `priority`: of the inserts that ended in its node. `hits`: matches through it.
    `window_use`: when its SWA data was last used.
    """

    created: Span
    priority: int = 0
    hits: int = 0
    window_use: Span = field(default_factory=lambda: Span(0, 0))


class UseLog:
    """What happened to each prefix: uses, hits, inserts and their priorities. It has pages, and no nodes of its own.

    A use of a prefix is a use of every node on its path; which states it refreshes, `recency` says. What the pages of
    one node share, both parts have after a split (INS-8).
    """

    def __init__(self, config: CacheConfig, recency: Recency) -> None:
        self._config = config
        self.recency = recency
        self._now = 0
        self._uses: dict[Place, int] = {}
        self._priorities: dict[Place, int] = {}
        self._pages: dict[Place, PageLog] = {}
        self._held: dict[tuple[Tier, str], set[Place]] = {}

    def matched(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot, *, is_hit: bool) -> None:
        """Record a match that ended at this prefix. `is_hit`: it is the first one of its request."""
        self._used(namespace, prefix, snapshot)
        for place, page in self._pages.items():
            if is_hit and place[0] == namespace and prefix.startswith(place[1]):
                page.hits += 1

    def inserted(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot, priority: int = 0) -> None:
        """Record an insert of this prefix: it ended at the deepest node on its path."""
        path = _path(snapshot, namespace, prefix)
        if not path:
            return
        known = set(self._pages_present())
        end = place_of(snapshot, path[-1])
        self._used(*end, snapshot)
        self._priorities[end] = max(self._priorities.get(end, 0), priority)
        last = set(pages_of(snapshot, path[-1], self._config.page_size))
        for place in last | (set(self._pages_present()) - known):
            self._pages[place].priority = max(self._pages[place].priority, priority)

    def observe(self, snapshot: Snapshot) -> None:
        """Find what came to a tier. What has left is known until it comes back, and then begins anew."""
        held = _held_pages(snapshot, self._config.page_size)
        before = set(self._pages_present())
        came = {place for key, places in held.items() for place in places - self._held.get(key, set())}
        for place in came:
            page = self._pages.get(place)
            if page is None or place not in before:
                page = self._pages[place] = PageLog(created=Span(self._now, self._now))
            # Whether data that comes back to a tier has the age of what had left, the contract does not say.
            page.created = Span(page.created.low, self._now)
        for tier in Tier:
            key = tier, Component.SWA.value
            for place in held.get(key, set()) - self._held.get(key, set()):
                self._pages[place].window_use = Span(0, self._now)
        self._held = held

    def ranks(self, place: Place, component: str) -> tuple[Rank, Rank]:
        """The lowest and the highest rank that a node which ends there may have in the order of the device.

        FULL goes by the policy (EVICT-2), SWA and MAMBA by use (EVICT-10). Of nodes of one use the parent is older.
        """
        if component != Component.FULL:
            return self.ranks_by_use(place, component)
        page, use = self._pages[place], self._last_use(place)
        exact: dict[EvictionPolicy, Rank] = {
            EvictionPolicy.LRU: (use,),
            EvictionPolicy.LFU: (page.hits, use),
            EvictionPolicy.MRU: (-use,),
            EvictionPolicy.SLRU: (page.hits >= PROTECTED_HITS, use),
        }
        if self._config.policy in exact:
            rank = exact[self._config.policy]
            return rank, rank
        if self._config.policy is EvictionPolicy.FIFO:
            return (page.created.low,), (page.created.high,)
        if self._config.policy is EvictionPolicy.FILO:
            return (-page.created.high,), (-page.created.low,)
        # A node may have the priority of its own inserts alone, or that of all which went through it.
        through = [priority for end, priority in self._priorities.items() if _is_on_path(place, end)]
        return (page.priority, use), (max([page.priority, *through]), use)

    def ranks_by_use(self, place: Place, component: str) -> tuple[Rank, Rank]:
        """The lowest and the highest rank in the order of least recent use."""
        depth = len(place[1])
        if component == Component.MAMBA and self.recency is not Recency.PATH:
            return ((self._uses.get(place, 0), depth),) * 2
        if component != Component.SWA:
            return ((self._last_use(place), depth),) * 2
        span = self._pages[place].window_use
        return (span.low, depth), (span.high, depth)

    def _last_use(self, place: Place) -> int:
        """The time when the node that ends there was last on the path of a use."""
        return max((now for end, now in self._uses.items() if _is_on_path(place, end)), default=0)

    def _used(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot) -> None:
        self._now += 1
        self._uses[namespace, prefix] = self._now
        self.observe(snapshot)
        if Component.SWA in self._config.components:
            self._used_window(namespace, prefix, snapshot)

    def _used_window(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot) -> None:
        """MATCH-10: SWA refreshes the nodes inside the window that ends at the match."""
        assert self._config.sliding_window_size is not None, "a cache with SWA has a window"
        page = self._config.page_size
        path = _path(snapshot, namespace, prefix)
        end = snapshot.nodes[path[-1]].end if path else 0
        start = end - -(-self._config.sliding_window_size // page) * page
        for number in reversed(path):
            places = pages_of(snapshot, number, page)
            is_held = any(places[-1] in self._held.get((tier, Component.SWA.value), ()) for tier in Tier)
            if snapshot.nodes[number].end <= start or not is_held:
                return
            for place in places:
                self._pages[place].window_use = Span(self._now, self._now)

    def _pages_present(self) -> Iterable[Place]:
        return set().union(*self._held.values())


def _path(snapshot: Snapshot, namespace: Namespace, prefix: bytes) -> list[int]:
    """The nodes that a prefix covers whole, the root's child first."""
    places = [place_of(snapshot, number) for number in range(len(snapshot.nodes))]
    numbers = [number for number, (owner, end) in enumerate(places) if owner == namespace and prefix.startswith(end)]
    return sorted(numbers, key=lambda number: snapshot.nodes[number].end)


def _is_on_path(place: Place, end: Place) -> bool:
    return place[0] == end[0] and end[1].startswith(place[1])


def _held_pages(snapshot: Snapshot, page_size: int) -> dict[tuple[Tier, str], set[Place]]:
    """The pages of the nodes that have a component on a tier."""
    held: dict[tuple[Tier, str], set[Place]] = {}
    for number, node in enumerate(snapshot.nodes):
        views: dict[Tier, NodeView | HostNodeView] = {Tier.DEVICE: node}
        if snapshot.host is not None:
            views[Tier.HOST] = snapshot.host.nodes[number]
        for tier, view in views.items():
            for component, slots in view.slots.items():
                if slots is not None:
                    held.setdefault((tier, component), set()).update(pages_of(snapshot, number, page_size))
    return held
