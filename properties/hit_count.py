"""How a match changes the hits of nodes, page by page, so that a split does not matter."""

from __future__ import annotations

from hicache.testing.snapshot import Snapshot
from hicache.types import Namespace

Place = tuple[Namespace, bytes]
"""A prefix in its namespace."""


def hits_by_page(snapshot: Snapshot, page_size: int) -> dict[Place, int]:
    """For each page of the tree the hits of its node, if the cache counts them."""
    hits: dict[Place, int] = {}
    for number, node in enumerate(snapshot.nodes):
        if node.hits is None:
            continue
        prefix = snapshot.prefix(number)
        page_bytes = len(node.segment) // (node.end - node.start) * page_size
        for end in range(len(prefix) - len(node.segment) + page_bytes, len(prefix) + 1, page_bytes):
            hits[node.namespace, prefix[:end]] = node.hits
    return hits


def require_hits(before: dict[Place, int], after: dict[Place, int], used: Place | None) -> None:
    """HOST-1, EVICT-2: a match is one hit of every page up to its end; a chunked match (`used` is None) is none."""
    expected = {
        place: count + (used is not None and place[0] == used[0] and used[1].startswith(place[1]))
        for place, count in before.items()
    }
    wrong = {place: (count, after.get(place)) for place, count in expected.items() if after.get(place) != count}
    assert not wrong, f"HOST-1: hits after a match differ, (expected, actual) by place: {wrong}"
