"""What an adapter shows of its cache: owned values, nodes named by their tokens and not by identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache.types import Namespace, Slots


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """One node.

    `parent`: index of the parent in the snapshot's nodes, or -1 below the root (the root itself is not listed).
    `segment`: the node's own part of the key: token ids as 4-byte little-endian, or pairs of them with bigram keys.
    `start`, `end`: the part's place in the whole key, in elements.
    `slots`: per component the device slots that the node holds, or None where it holds none (a tombstone).
    `locks`: per component how many receipts protect the node.
    `hits`: requests that matched the node, those that went through it included.
    """

    parent: int
    namespace: Namespace
    segment: bytes
    start: int
    end: int
    slots: Mapping[str, Slots | None]
    locks: Mapping[str, int]
    hits: int


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """The slots of one component's device pool: how many may be handed out, and the set of those that are free."""

    capacity: int
    free: Slots


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The whole cache at one moment. Parents come before their children."""

    nodes: tuple[NodeView, ...]
    pools: Mapping[str, PoolView]

    def prefix(self, index: int) -> bytes:
        """The whole key of a node, from the root to its end."""
        parts: list[bytes] = []
        while index >= 0:
            parts.append(self.nodes[index].segment)
            index = self.nodes[index].parent
        return b"".join(reversed(parts))
