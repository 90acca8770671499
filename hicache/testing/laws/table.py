"""NodeTable: the nodes of a snapshot as columns, so that a law is one comparison over all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class NodeTable:
    """One row per node: [nodes]. `held`: per component whether the node holds slots; `locks`: per component."""

    snapshot: Snapshot
    parent: Numbers
    start: Numbers
    end: Numbers
    held: Mapping[str, Flags]
    locks: Mapping[str, Numbers]

    @classmethod
    def of(cls, snapshot: Snapshot, components: Sequence[str]) -> NodeTable:
        """Columns of a snapshot for these components. Raises KeyError when a node does not speak of one."""
        nodes = snapshot.nodes
        return cls(
            snapshot=snapshot,
            parent=numbers([node.parent for node in nodes]),
            start=numbers([node.start for node in nodes]),
            end=numbers([node.end for node in nodes]),
            held={c: flags([node.slots[c] is not None for node in nodes]) for c in components},
            locks={c: numbers([node.locks[c] for node in nodes]) for c in components},
        )

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

    def of_parent(self, column: Numbers, below_root: int) -> Numbers:
        """The parent's value for each node, and `below_root` where the parent is the root."""
        return np.append(column, below_root)[self.parent]

    def of_children(self, column: Numbers) -> Numbers:
        """The sum over each node's children."""
        below = np.zeros_like(column)
        np.add.at(below, self.parent[self.has_parent], column[self.has_parent])
        return below

    def place(self, row: int) -> str:
        """A node in words."""
        node = self.snapshot.nodes[row]
        return f"node {row} (elements {node.start}..{node.end}, parent {node.parent}, {node.namespace})"

    def require(self, clause: str, holds: Flags, expected: str, actual: Callable[[int], object]) -> None:
        """Raise InvariantError for the first node at which a law does not hold."""
        if not holds.all():
            row = int(holds.argmin())
            raise violation(clause, self.place(row), expected, actual(row))


def numbers(values: Sequence[int]) -> Numbers:
    """A column of integers."""
    return np.array(values, dtype=np.int64)


def flags(values: Sequence[bool]) -> Flags:
    """A column of truth values."""
    return np.array(values, dtype=np.bool_)
