"""A node of the radix tree: one stretch of pages, and what each component holds of it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hicache.types import Namespace, Slots


class Shape(NamedTuple):
    """How many components lie on the nodes of a tree, and on how many tiers."""

    components: int
    tiers: int


class Arrival(Protocol):
    """A transfer that brings pages to a node."""

    def divide(self, upper: Node, lower: Node) -> None:
        """The node was cut: the transfer brings pages to both parts."""


class Node:
    """A stretch of whole pages below its parent.

    A place is a component on a tier: those of the device come first, in rank order, then those of the host.
    `edge`: what the parent finds the node by. `end`: pages from the root to the node's end. `values`: per place the
    pages of the stretch (int64; for MAMBA one state), or None: a tombstone. `arriving`: per place the transfer that
    brings pages to it, or None. `locks`: per place. For FULL on the device a node counts its own receipts plus its
    locked children, so that a lock climbs only where it is the first. `holders`: per tier how many children have FULL
    there. `touched`: per component, when it was last used. FULL's, and `priority`, speak of requests that ended here;
    what a child had that left goes to its parent. `hits`: requests that matched the node, or went through it.
    `failures`: backups that did not arrive. `persisted`: a bit for each component that storage was given, or gave.
    `persisting`: who gives storage something of it now, or None. `refusals`: how often storage did not take it.
    """

    __slots__ = (
        "alive",
        "arriving",
        "children",
        "created",
        "edge",
        "end",
        "failures",
        "hashes",
        "hits",
        "holders",
        "key",
        "locks",
        "namespace",
        "parent",
        "persisted",
        "persisting",
        "priority",
        "queued",
        "refusals",
        "touched",
        "values",
    )

    def __init__(self, parent: Node | None, key: bytes, namespace: Namespace, end: int, shape: Shape) -> None:
        self.parent = parent
        self.edge = b""
        self.key = key
        self.namespace = namespace
        self.end = end
        self.children: dict[bytes, Node] = {}
        places = shape.components * shape.tiers
        self.values: list[Slots | None] = [None] * places
        self.arriving: list[Arrival | None] = [None] * places
        self.locks: list[int] = [0] * places
        self.queued: list[object] = [None] * places
        self.holders: list[int] = [0] * shape.tiers
        self.touched: list[int] = [0] * shape.components
        self.failures = 0
        self.persisted = 0
        self.persisting: object = None
        self.refusals = 0
        self.hits = 0
        self.priority = 0
        self.created = 0
        self.hashes: list[bytes] | None = None
        self.alive = True

    @property
    def start(self) -> int:
        """Pages from the root to the node's beginning."""
        return self.parent.end if self.parent else 0

    @property
    def pages(self) -> int:
        """Length of the stretch."""
        return self.end - self.start

    def last_hash(self) -> bytes | None:
        """The digest of the node's last page, or None while none was computed."""
        return self.hashes[-1] if self.hashes else None

    def path(self) -> list[Node]:
        """The nodes from the root's child down to this one, in a fresh list."""
        nodes: list[Node] = []
        node: Node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def __repr__(self) -> str:
        held = ["-" if value is None else str(len(value)) for value in self.values]
        return f"Node(pages {self.start}..{self.end}, held {'/'.join(held)}, locks {self.locks}, alive={self.alive})"
