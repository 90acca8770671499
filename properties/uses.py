"""The uses of prefixes: the hits that a match adds to nodes, and the victims that LRU must choose."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Namespace, Tier

FULL = Component.FULL.value

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


class UseLog:
    """The time of the last use of each prefix. A use of a prefix is a use of every node on its path."""

    def __init__(self) -> None:
        self._uses: dict[Place, int] = {}
        self._now = 0

    def used(self, namespace: Namespace, prefix: bytes) -> None:
        """Record that a match or an insert ended at this prefix."""
        self._now += 1
        self._uses[namespace, prefix] = self._now

    def last_use(self, place: Place) -> int:
        """The time when the node that ends there was last on the path of a use."""
        namespace, prefix = place
        uses = (now for (owner, used), now in self._uses.items() if owner == namespace and used.startswith(prefix))
        return max(uses, default=0)

    def inserted(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot) -> None:
        """Record an insert of this prefix: it ended at the deepest node on its path."""
        ends = [end for owner, end in _node_states(snapshot) if owner == namespace and prefix.startswith(end)]
        self.used(namespace, max(ends, key=len, default=b""))

    def require_victims(self, before: Snapshot, after: Snapshot, tokens: int) -> None:
        """EVICT-2: an eviction of FULL by LRU took the expected nodes from the device. Host copies stay on the host."""
        expected, _ = self._victims(before, Tier.DEVICE, tokens)
        gone = _places(before, Tier.DEVICE) - _places(after, Tier.DEVICE)
        assert gone == expected, f"EVICT-2: expected the LRU victims {expected}, got {gone}"

    def require_host_victims(self, before: Snapshot, after: Snapshot, tokens: int) -> None:
        """EVICT-8: an eviction of FULL took from the host nodes without device data first, by LRU, and then copies."""
        expected, is_enough = self._victims(before, Tier.HOST, tokens)
        gone = _places(before, Tier.HOST) - _places(after, Tier.HOST)
        is_right = gone == expected if is_enough else gone >= expected
        assert is_right, f"EVICT-8: expected the host victims {expected}, got {gone}"

    def _victims(self, snapshot: Snapshot, tier: Tier, tokens: int) -> tuple[set[Place], bool]:
        eviction = SimulatedEviction(snapshot, tier)
        while eviction.freed < tokens and (candidates := eviction.candidates()):
            eviction.take(min(candidates, key=self.last_use))
        return eviction.taken, eviction.freed >= tokens


@dataclass(slots=True)
class NodeState:
    """A node of the simulated eviction: how many slots of each component it has on each tier."""

    parent: Place | None
    held: dict[Tier, dict[str, int]]
    is_locked: dict[Tier, bool]

    def is_on(self, tier: Tier) -> bool:
        """Whether a tier has its FULL data."""
        return FULL in self.held.get(tier, {})

    def drop(self, tier: Tier) -> int:
        """Drop all data on a tier; returns the number of FULL slots that this frees."""
        freed = self.held[tier].get(FULL, 0)
        self.held[tier] = {}
        return freed


class SimulatedEviction:
    """Simulates an eviction of FULL from one tier. `freed`: FULL slots so far; `taken`: the nodes that lost them."""

    def __init__(self, snapshot: Snapshot, tier: Tier) -> None:
        self.freed = 0
        self.taken: set[Place] = set()
        self._tier = tier
        self._nodes = _node_states(snapshot)
        self._components = tuple(snapshot.pools)

    def candidates(self) -> list[Place]:
        """The leaves of the tier that can be evicted now; on the host only those without device data."""
        stays = {node.parent for node in self._nodes.values() if node.is_on(self._tier)}
        return [place for place, node in self._nodes.items() if place not in stays and self._may_go(node)]

    def take(self, place: Place) -> None:
        """Evict a leaf, and the ancestors that no match can end at any more (EVICT-6)."""
        self._leave(place)
        goes: Place | None = place
        while goes is not None and self._is_useless(goes):
            self._leave(goes)
            goes = self._nodes.pop(goes).parent

    def _leave(self, place: Place) -> None:
        node = self._nodes[place]
        if node.is_on(self._tier):
            self.taken.add(place)
            self.freed += node.drop(self._tier)

    def _may_go(self, node: NodeState) -> bool:
        if self._tier is Tier.DEVICE:
            return node.is_on(Tier.DEVICE) and not node.is_locked[Tier.DEVICE]
        return node.is_on(Tier.HOST) and not node.is_on(Tier.DEVICE) and not any(node.is_locked.values())

    def _is_useless(self, place: Place) -> bool:
        node = self._nodes[place]
        held = {component for components in node.held.values() for component in components}
        is_childless = all(other.parent != place for other in self._nodes.values())
        return is_childless and not any(node.is_locked.values()) and not held.issuperset(self._components)


def _node_states(snapshot: Snapshot) -> dict[Place, NodeState]:
    nodes: dict[Place, NodeState] = {}
    for number, node in enumerate(snapshot.nodes):
        below = None if snapshot.host is None else snapshot.host.nodes[number]
        views: dict[Tier, NodeView | HostNodeView] = {Tier.DEVICE: node}
        if below is not None:
            views[Tier.HOST] = below
        nodes[_place(snapshot, number)] = NodeState(
            parent=_place(snapshot, node.parent) if node.parent >= 0 else None,
            held={tier: {c: len(own) for c, own in views[tier].slots.items() if own is not None} for tier in views},
            is_locked={tier: any(views[tier].locks.values()) for tier in views},
        )
    return nodes


def _places(snapshot: Snapshot, tier: Tier) -> set[Place]:
    return {place for place, node in _node_states(snapshot).items() if node.is_on(tier)}


def _place(snapshot: Snapshot, number: int) -> Place:
    return snapshot.nodes[number].namespace, snapshot.prefix(number)
