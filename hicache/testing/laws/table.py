"""NodeTable: the nodes of a snapshot as columns, so that a law is one comparison over all nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.testing.violation import violation
from hicache.types import Slots, Tier

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class TierColumns:
    """The nodes' data on one tier, by component: [nodes] each.

    `held`: whether the node has slots. `locks`: lock counts. `pins`: how many of the locks the cache itself holds.
    """

    tier: Tier
    views: Sequence[NodeView | HostNodeView]
    held: Mapping[str, Flags]
    locks: Mapping[str, Numbers]
    pins: Mapping[str, Numbers]

    @property
    def where(self) -> str:
        """The tier for a message; empty for the device, which every cache has."""
        return " on the host" if self.tier is Tier.HOST else ""


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """One row per node: [nodes]. `host`: None without a host tier."""

    snapshot: Snapshot
    parent: Numbers
    start: Numbers
    end: Numbers
    device: TierColumns
    host: TierColumns | None

    @classmethod
    def of(cls, snapshot: Snapshot, components: Sequence[str]) -> NodeTable:
        """The columns of a snapshot for these components. Raises KeyError when a node lacks one of them."""
        nodes, host = snapshot.nodes, snapshot.host
        nothing: Numbers = np.zeros(len(nodes), dtype=np.int64)
        pins = {c: nothing if host is None else numbers([view.pins[c] for view in host.nodes]) for c in components}
        return cls(
            snapshot=snapshot,
            parent=numbers([node.parent for node in nodes]),
            start=numbers([node.start for node in nodes]),
            end=numbers([node.end for node in nodes]),
            device=_columns(Tier.DEVICE, nodes, pins, components),
            host=None if host is None else _host_columns(host.nodes, components),
        )

    @property
    def tiers(self) -> Sequence[TierColumns]:
        """The tiers of the snapshot."""
        return [self.device] if self.host is None else [self.device, self.host]

    @property
    def has_parent(self) -> Flags:
        """Which nodes are not directly below the root."""
        return self.parent >= 0

    @property
    def is_leaf(self) -> Flags:
        """Which nodes have no child."""
        leaf = np.ones(len(self.parent), dtype=np.bool_)
        leaf[self.parent[self.has_parent]] = False
        return leaf

    def held_anywhere(self, component: str) -> Flags:
        """Which nodes hold a component's data on any tier."""
        held = self.device.held[component]
        return held if self.host is None else held | self.host.held[component]

    def of_parent(self, column: Numbers, below_root: int) -> Numbers:
        """The parent's value for each node, and `below_root` where the parent is the root."""
        return np.append(column, below_root)[self.parent]

    def of_children(self, column: Numbers) -> Numbers:
        """The sum over each node's children."""
        below = np.zeros_like(column)
        np.add.at(below, self.parent[self.has_parent], column[self.has_parent])
        return below

    def place(self, row: int) -> str:
        """A description of a node."""
        node = self.snapshot.nodes[row]
        return f"node {row} (elements {node.start}..{node.end}, parent {node.parent}, {node.namespace})"

    def require(self, clause: str, holds: Flags, expected: str, actual: Callable[[int], object]) -> None:
        """Raise InvariantError for the first node that violates a law."""
        if len(holds) and not holds[row := int(holds.argmin())]:
            raise violation(clause, self.place(row), expected, actual(row))


def numbers(values: Sequence[int]) -> Numbers:
    """A column of integers."""
    return np.array(values, dtype=np.int64)


def flags(values: Sequence[bool]) -> Flags:
    """A column of truth values."""
    return np.array(values, dtype=np.bool_)


def _host_columns(nodes: Sequence[HostNodeView], components: Sequence[str]) -> TierColumns:
    pins = {c: numbers([node.host_pins[c] for node in nodes]) for c in components}
    return _columns(Tier.HOST, nodes, pins, components)


def _columns(
    tier: Tier, nodes: Sequence[NodeView | HostNodeView], pins: Mapping[str, Numbers], components: Sequence[str]
) -> TierColumns:
    return TierColumns(
        tier=tier,
        views=nodes,
        held={c: flags([node.slots[c] is not None for node in nodes]) for c in components},
        locks={c: numbers([node.locks[c] for node in nodes]) for c in components},
        pins=pins,
    )


BATCH_SLOTS = 1 << 20
"""The number of slots in a full batch."""


def batches(arrays: Iterable[Slots]) -> Iterator[Slots]:
    """The same slots in the same order, joined into batches."""
    pending: list[Slots] = []
    count = 0
    for slots in arrays:
        pending.append(slots)
        count += len(slots)
        if count >= BATCH_SLOTS:
            yield np.concatenate(pending)
            pending, count = [], 0
    if count:
        yield pending[0] if len(pending) == 1 else np.concatenate(pending)
