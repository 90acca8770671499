"""What an adapter shows of its cache: owned values, nodes named by their tokens and not by identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache.types import Namespace, Slots, TransferKind


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """One node.

    `parent`: index of the parent in the snapshot's nodes, or -1 below the root (the root itself is not listed).
    `segment`: the node's own part of the key: token ids as 4-byte little-endian, or pairs of them with bigram keys.
    `start`, `end`: the part's place in the whole key, in elements.
    `slots`: per component the device slots that the node holds, or None where it holds none (a tombstone).
    `locks`: per component how many receipts protect the node on the device, those of transfers included.
    `hits`: requests that matched the node, those that went through it included; None where they are not counted.
    """

    parent: int
    namespace: Namespace
    segment: bytes
    start: int
    end: int
    slots: Mapping[str, Slots | None]
    locks: Mapping[str, int]
    hits: int | None


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """The slots of one component's pool on a tier: how many may be handed out, and the set of those that are free."""

    capacity: int
    free: Slots


@dataclass(frozen=True, slots=True, eq=False)
class HostNodeView:
    """What the host tier adds to one node.

    `slots`: per component the host slots that the node holds, or None. `locks`: per component the host lock count.
    `pins`, `host_pins`: how many of the device locks and of the host locks are the cache's own, for its transfers and
    for loads that were not claimed yet.
    """

    slots: Mapping[str, Slots | None]
    locks: Mapping[str, int]
    pins: Mapping[str, int]
    host_pins: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class TransferView:
    """One operation that is queued or running: the slots at its two ends, by component, pairwise the same data.

    A backup's host slots, and a load's device slots, belong to the operation until it is taken over.
    """

    kind: TransferKind
    device: Mapping[str, Slots]
    host: Mapping[str, Slots]


@dataclass(frozen=True, slots=True, eq=False)
class HostView:
    """The host tier.

    `nodes`: one for each node of the snapshot, in the same order. `pools`: by component. `kept`: by component, device
    slots of loads that have ended which the tree did not take, because it has other slots for the same tokens by now,
    and which are kept for whoever reads them until the loads are claimed or abandoned.
    """

    nodes: tuple[HostNodeView, ...]
    pools: Mapping[str, PoolView]
    transfers: tuple[TransferView, ...]
    kept: Mapping[str, Slots]


@dataclass(frozen=True, slots=True, eq=False)
class FetchView:
    """One prefetch that holds host slots: those that belong to it, by component, until they are a node's or free."""

    host: Mapping[str, Slots]


@dataclass(frozen=True, slots=True, eq=False)
class StorageView:
    """The storage tier.

    `persisted`: for each node of the snapshot, in the same order, the components that storage was given of it; None
    where the cache keeps no such marks.
    `fetches`: the prefetches that hold host slots, those that nobody waits for any more included.
    """

    persisted: tuple[frozenset[str], ...] | None
    fetches: tuple[FetchView, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The whole cache at one moment. Parents come before their children. `host`, `storage`: None without that tier."""

    nodes: tuple[NodeView, ...]
    pools: Mapping[str, PoolView]
    host: HostView | None
    storage: StorageView | None

    def prefix(self, index: int) -> bytes:
        """The whole key of a node, from the root to its end."""
        parts: list[bytes] = []
        while index >= 0:
            parts.append(self.nodes[index].segment)
            index = self.nodes[index].parent
        return b"".join(reversed(parts))
