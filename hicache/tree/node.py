"""A node of the radix tree: one stretch of pages, and what each component holds of it."""

from __future__ import annotations

from hicache.types import Namespace, Slots


class Node:
    """A stretch of whole pages below its parent.

    `edge`: what the parent finds the node by. `end`: pages from the root to the node's end. `values`: per component the
    device pages of the stretch (int64; for MAMBA one state), or None: a tombstone. `locks`: per component. For FULL a
    node counts its own receipts plus its locked children, so that a lock climbs only where it is the first. `touched`:
    per component, when it was last used. `hits`, `priority` and FULL's `touched` speak of requests that ended here;
    what a removed child had goes to its parent.
    """

    __slots__ = (
        "alive",
        "children",
        "created",
        "edge",
        "end",
        "hashes",
        "hits",
        "key",
        "locks",
        "namespace",
        "parent",
        "priority",
        "queued",
        "touched",
        "values",
    )

    def __init__(self, parent: Node | None, key: bytes, namespace: Namespace, end: int, components: int) -> None:
        self.parent = parent
        self.edge = b""
        self.key = key
        self.namespace = namespace
        self.end = end
        self.children: dict[bytes, Node] = {}
        self.values: list[Slots | None] = [None] * components
        self.locks: list[int] = [0] * components
        self.touched: list[int] = [0] * components
        self.queued: list[object] = [None] * components
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
