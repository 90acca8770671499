"""Operation: the pages of one node on their way to another tier, and the nodes that the node was cut into since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache.components.locks import LockReceipt
from hicache.transfer.job import Move
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, Slots, TransferKind, TransferPhase


@dataclass(slots=True, eq=False)
class Operation:
    """One node's pages under way.

    `start`: pages from the root to where the node began. `moves`: by component, all pages of the node then.
    `fragments`: the node and, before it, the parts that were cut from it. `pins`: released when it ends. `readers`: who
    reads its pages already. `kept`: FULL pages that arrived and that the tree did not take, but readers read.
    """

    kind: TransferKind
    start: int
    moves: Mapping[str, Move]
    fragments: list[Node]
    pins: list[LockReceipt]
    phase: TransferPhase
    readers: set[object]
    kept: Slots

    @classmethod
    def of(cls, kind: TransferKind, node: Node, moves: Mapping[str, Move], pins: list[LockReceipt]) -> Operation:
        """An operation over one node."""
        return cls(kind, node.start, moves, [node], pins, TransferPhase.QUEUED, set(), NO_SLOTS)

    def divide(self, upper: Node, lower: Node) -> None:
        """A fragment was cut in two."""
        self.fragments.insert(self.fragments.index(lower), upper)

    def target(self, component: str) -> Slots:
        """The pages that a component's data goes to."""
        move = self.moves[component]
        return move.host if self.kind is TransferKind.BACKUP else move.device

    def part(self, component: str, fragment: Node) -> Slots:
        """Those of one fragment, in an array of its own; a state is the last fragment's."""
        pages = self.target(component)
        if component == Component.MAMBA:
            return pages.copy()
        return pages[fragment.start - self.start : fragment.end - self.start].copy()
