"""The oracle of evictions: which nodes an eviction of a component from a tier may take, by EVICT-1 to EVICT-8."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from hicache.config import Recency
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.types import Component, Tier

from .uses import Place, Rank, UseLog, place_of

FULL, MAMBA = Component.FULL.value, Component.MAMBA.value

Ranks = Callable[[Place], tuple[Rank, Rank]]
"""The lowest and the highest rank that a node may have in the order of an eviction."""

ANY: tuple[Rank, Rank] = (-1,), (1 << 62,)
"""The ranks of nodes whose order the contract leaves open."""


def require_victims(uses: UseLog, before: Snapshot, after: Snapshot, component: str, tokens: int) -> None:
    """EVICT-2, EVICT-10: an eviction took from the device the nodes that are first in the component's order."""
    clause = "EVICT-2" if component == FULL else "EVICT-10"
    start = SimulatedEviction.of(before, Tier.DEVICE, component)
    thins = component == MAMBA and uses.recency is Recency.COVERAGE
    _require(clause, start, after, tokens, lambda place: uses.ranks(place, component), thins=thins)


def require_host_victims(uses: UseLog, before: Snapshot, after: Snapshot, component: str, tokens: int) -> None:
    """EVICT-8: an eviction took from the host data that is there alone, least recently used first, and then copies."""
    start = SimulatedEviction.of(before, Tier.HOST, component)

    def ranks(place: Place) -> tuple[Rank, Rank]:
        if component in start.nodes[place].held[Tier.DEVICE]:
            return tuple((1, *rank) for rank in ANY)  # type: ignore[return-value]
        return tuple((0, *rank) for rank in uses.ranks_by_use(place, component))  # type: ignore[return-value]

    _require("EVICT-8", start, after, tokens, ranks, thins=False)


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node of the simulated eviction: how many slots of each component it has on each tier, and what is locked."""

    parent: Place | None
    held: dict[Tier, dict[str, int]]
    locked: dict[Tier, frozenset[str]]


@dataclass(frozen=True, slots=True)
class SimulatedEviction:
    """An eviction of a component from a tier, after some victims. `freed`: its slots; `taken`: what had them."""

    tier: Tier
    component: str
    components: Sequence[str]
    nodes: dict[Place, NodeState]
    taken: frozenset[Place] = frozenset()
    freed: int = 0

    @classmethod
    def of(cls, snapshot: Snapshot, tier: Tier, component: str) -> SimulatedEviction:
        """The start of an eviction."""
        ranked = [one.value for one in Component if one.value in snapshot.pools]
        return cls(tier, component, ranked, _node_states(snapshot))

    def candidates(self) -> list[Place]:
        """What may be evicted next: of FULL only leaves of the tier; nothing that is locked, or goes with what is."""
        return [place for place in self.nodes if self._holds(place) and self._may_go(place)]

    def take(self, place: Place) -> SimulatedEviction:
        """Evict a leaf in full (EVICT-3), or of an inner node the component and those after it (EVICT-4).

        Also takes the ancestors that no match can end at any more (EVICT-6).
        """
        node = self.nodes[place]
        goes = self.components if self._goes_in_full(place) else self._with_later()
        left = {name: count for name, count in node.held[self.tier].items() if name not in goes}
        nodes = self.nodes | {place: replace(node, held=node.held | {self.tier: left})}
        useless: Place | None = place
        while useless is not None and _is_useless(nodes, useless, self.components):
            useless = nodes.pop(useless).parent
        lost = {
            other
            for other in self.nodes
            if self._holds(other) and (other not in nodes or self.component not in nodes[other].held[self.tier])
        }
        freed = sum(self.nodes[other].held[self.tier][self.component] for other in lost)
        return replace(self, nodes=nodes, taken=self.taken | lost, freed=self.freed + freed)

    def thinned(self, place: Place) -> Place:
        """MATCH-19: the state that goes where this one is the least recent."""
        states = [step for step in self._between_forks(place) if self._holds(step)]
        above = self._parents(states[0])
        ends = [next((len(step[1]) for step in above if self._holds(step)), 0), *(len(state[1]) for state in states)]
        gaps = {state: (ends[number + 2] - ends[number], number) for number, state in enumerate(states[:-1])}
        return min((state for state in gaps if self._may_go(state)), key=gaps.__getitem__, default=place)

    def _between_forks(self, place: Place) -> list[Place]:
        """The nodes below the last fork above a node, down to the next fork, from above."""
        children: dict[Place | None, list[Place]] = {}
        for other, node in self.nodes.items():
            children.setdefault(node.parent, []).append(other)
        line = [place]
        while (parent := self.nodes[line[0]].parent) is not None and len(children[parent]) == 1:
            line.insert(0, parent)
        while len(children.get(line[-1], ())) == 1:
            line += children[line[-1]]
        return line

    def _parents(self, place: Place) -> Iterator[Place]:
        parent = self.nodes[place].parent
        while parent is not None:
            yield parent
            parent = self.nodes[parent].parent

    def _holds(self, place: Place) -> bool:
        return self.component in self.nodes[place].held[self.tier]

    def _with_later(self) -> Sequence[str]:
        return self.components[self.components.index(self.component) :]

    def _is_leaf(self, place: Place) -> bool:
        return all(node.parent != place or FULL not in node.held[self.tier] for node in self.nodes.values())

    def _may_go(self, place: Place) -> bool:
        node = self.nodes[place]
        if not node.locked[self.tier].isdisjoint(self._with_later()):
            return False
        if self.component != FULL:
            return True
        # A node that is nowhere else leaves the tree: it must be unlocked on the other tier.
        is_elsewhere = self.tier is Tier.DEVICE or FULL in node.held[Tier.DEVICE]
        return self._is_leaf(place) and (is_elsewhere or not node.locked[Tier.DEVICE])

    def _goes_in_full(self, place: Place) -> bool:
        node = self.nodes[place]
        if self.tier is Tier.DEVICE:
            return self._is_leaf(place) and FULL not in node.locked[Tier.DEVICE]
        is_childless = all(other.parent != place for other in self.nodes.values())
        return is_childless and not any(node.locked.values()) and FULL not in node.held[Tier.DEVICE]


def _require(clause: str, start: SimulatedEviction, after: Snapshot, tokens: int, ranks: Ranks, *, thins: bool) -> None:
    """Some order of victims that the ranks allow must lead to what is left. `thins`: by MATCH-19."""
    left = {place for place, node in _node_states(after).items() if start.component in node.held[start.tier]}
    had = {place for place, node in start.nodes.items() if start.component in node.held[start.tier]}
    gone = had - left
    seen: set[frozenset[Place]] = set()
    open_ends = [start]
    while open_ends:
        one = open_ends.pop()
        if one.taken in seen or not one.taken <= gone:
            continue
        seen.add(one.taken)
        first = _first(one.candidates(), ranks) if one.freed < tokens else []
        if not first and one.taken == gone:
            return
        open_ends += [one.take(one.thinned(place) if thins else place) for place in first]
    order = {place: ranks(place) for place in sorted(start.candidates(), key=ranks)}
    raise AssertionError(
        f"{clause}: {tokens} slots of {start.component} on the {start.tier.value}: expected victims by rank {order}, "
        f"got {sorted(gone, key=lambda place: place[1])}"
    )


def _first(candidates: Sequence[Place], ranks: Ranks) -> list[Place]:
    """The candidates that may be the next victim: none of the others certainly comes before them."""
    highest = min((ranks(place)[1] for place in candidates), default=None)
    return [] if highest is None else [place for place in candidates if ranks(place)[0] <= highest]


def _is_useless(nodes: dict[Place, NodeState], place: Place, components: Sequence[str]) -> bool:
    node = nodes[place]
    held = {component for on_tier in node.held.values() for component in on_tier}
    is_childless = all(other.parent != place for other in nodes.values())
    return is_childless and not any(node.locked.values()) and not held.issuperset(components)


def _node_states(snapshot: Snapshot) -> dict[Place, NodeState]:
    nodes: dict[Place, NodeState] = {}
    for number, node in enumerate(snapshot.nodes):
        views: dict[Tier, NodeView | HostNodeView] = {Tier.DEVICE: node}
        if snapshot.host is not None:
            views[Tier.HOST] = snapshot.host.nodes[number]
        nodes[place_of(snapshot, number)] = NodeState(
            parent=place_of(snapshot, node.parent) if node.parent >= 0 else None,
            held={
                tier: {c: len(own) for c, own in view.slots.items() if own is not None} for tier, view in views.items()
            },
            locked={tier: frozenset(c for c, count in view.locks.items() if count) for tier, view in views.items()},
        )
    return nodes
