"""Who should have been evicted: least recently used leaves, worked out from a log of uses by plain search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hicache.testing.snapshot import Snapshot
from hicache.types import Component, Namespace

Place = tuple[Namespace, bytes]
"""A prefix in its namespace."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A node that is a leaf once the victims before it are gone."""

    place: Place
    parent: Place | None
    slots: int
    is_locked: bool
    is_tombstone: bool


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

    def victims(self, snapshot: Snapshot, tokens: int) -> list[Place]:
        """The places that an eviction of FULL by LRU takes from this state, in order."""
        nodes = dict(_leaves(snapshot))
        children = dict.fromkeys(nodes, 0)
        for leaf in nodes.values():
            if leaf.parent is not None:
                children[leaf.parent] += 1
        taken: list[Place] = []
        freed = 0
        while freed < tokens:
            free = [place for place, leaf in nodes.items() if not children[place] and not leaf.is_locked]
            if not free:
                return taken
            place: Place | None = min(free, key=self.last_use)
            while place is not None:
                leaf = nodes.pop(place)
                taken.append(place)
                freed += leaf.slots
                if leaf.parent is not None:
                    children[leaf.parent] -= 1
                place = leaf.parent if _goes_too(leaf.parent, nodes, children) else None
        return taken


def _goes_too(parent: Place | None, nodes: Mapping[Place, Leaf], children: Mapping[Place, int]) -> bool:
    """Whether the loss of a child leaves a tombstone that nothing can match (EVICT-6)."""
    if parent is None or children[parent]:
        return False
    return nodes[parent].is_tombstone and not nodes[parent].is_locked


def _leaves(snapshot: Snapshot) -> Iterator[tuple[Place, Leaf]]:
    for number, node in enumerate(snapshot.nodes):
        place = (node.namespace, snapshot.prefix(number))
        parent = (node.namespace, snapshot.prefix(node.parent)) if node.parent >= 0 else None
        full = node.slots[Component.FULL]
        is_tombstone = any(slots is None for slots in node.slots.values())
        slots = 0 if full is None else len(full)
        yield place, Leaf(place, parent, slots, node.locks[Component.FULL] > 0, is_tombstone)


def places(snapshot: Snapshot) -> set[Place]:
    """Where each node ends."""
    return {(node.namespace, snapshot.prefix(number)) for number, node in enumerate(snapshot.nodes)}
