"""Who should have been evicted: least recently used leaves, worked out from a log of uses by plain search."""

from __future__ import annotations

from dataclasses import dataclass

from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Namespace, Tier

FULL = Component.FULL.value

Place = tuple[Namespace, bytes]
"""A prefix in its namespace."""


@dataclass(slots=True)
class Stretch:
    """A node while victims are taken one by one: per component how many slots it has on each tier."""

    parent: Place | None
    held: dict[Tier, dict[str, int]]
    is_locked: dict[Tier, bool]

    def is_on(self, tier: Tier) -> bool:
        """Whether a tier has its FULL data."""
        return FULL in self.held.get(tier, {})

    def leave(self, tier: Tier) -> int:
        """Let go of everything on a tier; the FULL slots that this frees."""
        freed = self.held[tier].get(FULL, 0)
        self.held[tier] = {}
        return freed


class UseLog:
    """When each prefix was last used. A use of a prefix is a use of every node on its path."""

    def __init__(self) -> None:
        self._uses: dict[Place, int] = {}
        self._now = 0

    def used(self, namespace: Namespace, prefix: bytes) -> None:
        """A match or an insert ended at this prefix."""
        self._now += 1
        self._uses[namespace, prefix] = self._now

    def last_use(self, place: Place) -> int:
        """When the node that ends there was last on the path of a use."""
        namespace, prefix = place
        uses = (now for (owner, used), now in self._uses.items() if owner == namespace and used.startswith(prefix))
        return max(uses, default=0)

    def inserted(self, namespace: Namespace, prefix: bytes, snapshot: Snapshot) -> None:
        """This prefix was inserted, as far as the tree took it: to the deepest node on its path."""
        ends = [end for owner, end in _stretches(snapshot) if owner == namespace and prefix.startswith(end)]
        self.used(namespace, max(ends, key=len, default=b""))

    def require_victims(self, before: Snapshot, after: Snapshot, tokens: int) -> None:
        """EVICT-2: what an eviction of FULL by LRU took from the device. What has a host copy stays on the host."""
        expected, _ = self._victims(before, Tier.DEVICE, tokens)
        gone = _places(before, Tier.DEVICE) - _places(after, Tier.DEVICE)
        assert gone == expected, f"EVICT-2: LRU takes {expected}, taken were {gone}"

    def require_host_victims(self, before: Snapshot, after: Snapshot, tokens: int) -> None:
        """EVICT-8: what an eviction of FULL took from the host: what is nowhere else by use, before any copy."""
        expected, is_enough = self._victims(before, Tier.HOST, tokens)
        gone = _places(before, Tier.HOST) - _places(after, Tier.HOST)
        is_right = gone == expected if is_enough else gone >= expected
        assert is_right, f"EVICT-8: from the host go {expected}, taken were {gone}"

    def _victims(self, snapshot: Snapshot, tier: Tier, tokens: int) -> tuple[set[Place], bool]:
        eviction = Eviction(snapshot, tier)
        while eviction.freed < tokens and (candidates := eviction.candidates()):
            eviction.take(min(candidates, key=self.last_use))
        return eviction.taken, eviction.freed >= tokens


class Eviction:
    """What FULL's eviction from one tier does to a tree. `freed`: slots so far; `taken`: the places they were at."""

    def __init__(self, snapshot: Snapshot, tier: Tier) -> None:
        self.freed = 0
        self.taken: set[Place] = set()
        self._tier = tier
        self._nodes = _stretches(snapshot)
        self._components = tuple(snapshot.pools)

    def candidates(self) -> list[Place]:
        """The leaves of the tier that may go now; of the host's those that are nowhere else."""
        stays = {node.parent for node in self._nodes.values() if node.is_on(self._tier)}
        return [place for place, node in self._nodes.items() if place not in stays and self._may_go(node)]

    def take(self, place: Place) -> None:
        """Take a leaf, and the ancestors that nothing can match without it (EVICT-6)."""
        self._leave(place)
        goes: Place | None = place
        while goes is not None and self._is_useless(goes):
            self._leave(goes)
            goes = self._nodes.pop(goes).parent

    def _leave(self, place: Place) -> None:
        node = self._nodes[place]
        if node.is_on(self._tier):
            self.taken.add(place)
            self.freed += node.leave(self._tier)

    def _may_go(self, node: Stretch) -> bool:
        if self._tier is Tier.DEVICE:
            return node.is_on(Tier.DEVICE) and not node.is_locked[Tier.DEVICE]
        return node.is_on(Tier.HOST) and not node.is_on(Tier.DEVICE) and not any(node.is_locked.values())

    def _is_useless(self, place: Place) -> bool:
        node = self._nodes[place]
        held = {component for components in node.held.values() for component in components}
        is_childless = all(other.parent != place for other in self._nodes.values())
        return is_childless and not any(node.is_locked.values()) and not held.issuperset(self._components)


def _stretches(snapshot: Snapshot) -> dict[Place, Stretch]:
    nodes: dict[Place, Stretch] = {}
    for number, node in enumerate(snapshot.nodes):
        below = None if snapshot.host is None else snapshot.host.nodes[number]
        views: dict[Tier, NodeView | HostNodeView] = {Tier.DEVICE: node}
        if below is not None:
            views[Tier.HOST] = below
        nodes[_place(snapshot, number)] = Stretch(
            parent=_place(snapshot, node.parent) if node.parent >= 0 else None,
            held={tier: {c: len(own) for c, own in views[tier].slots.items() if own is not None} for tier in views},
            is_locked={tier: any(views[tier].locks.values()) for tier in views},
        )
    return nodes


def _places(snapshot: Snapshot, tier: Tier) -> set[Place]:
    return {place for place, node in _stretches(snapshot).items() if node.is_on(tier)}


def _place(snapshot: Snapshot, number: int) -> Place:
    return snapshot.nodes[number].namespace, snapshot.prefix(number)
