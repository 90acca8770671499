"""Transfer: the pages of one node on their way between device and host, and the parts that the node was split into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache.components.component_tree import LockReceipt
from hicache.transfer.job import Move
from hicache.tree.node import Node
from hicache.types import NO_SLOTS, Component, Slots, TransferKind, TransferPhase


@dataclass(slots=True, eq=False)
class Transfer:
    """One node's pages under way.

    `start`: pages from the root to where the node began. `moves`: by component, all pages of the node at that time.
    `nodes`: the node and, before it, the parts that were split off since. `pins`: released when it ends. `readers`: who
    reads its pages already. `orphaned`: FULL pages that arrived and that no node took, while readers still read them.
    `sharing`: those of them that share their SWA partners with pages of a node.
    """

    kind: TransferKind
    start: int
    moves: Mapping[str, Move]
    nodes: list[Node]
    pins: list[LockReceipt]
    phase: TransferPhase
    readers: set[object]
    orphaned: Slots
    sharing: Slots

    @classmethod
    def of(cls, kind: TransferKind, node: Node, moves: Mapping[str, Move], pins: list[LockReceipt]) -> Transfer:
        """A transfer of one node that has not started."""
        return cls(kind, node.start, moves, [node], pins, TransferPhase.QUEUED, set(), NO_SLOTS, NO_SLOTS)

    def split(self, upper: Node, lower: Node) -> None:
        """One of its nodes was split."""
        self.nodes.insert(self.nodes.index(lower), upper)

    def target(self, component: str) -> Slots:
        """The pages that a component's data is copied to."""
        move = self.moves[component]
        return move.host if self.kind is TransferKind.BACKUP else move.device

    def part(self, component: str, node: Node) -> Slots:
        """The target pages of one of its nodes, in an array of its own. A state belongs to the last node."""
        pages = self.target(component)
        if component == Component.MAMBA:
            return pages.copy()
        return pages[node.start - self.start : node.end - self.start].copy()
