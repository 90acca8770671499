"""The snapshots of caches: Snapshot of a tree, BlockSnapshot of blocks or chunks. Both are copied values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache.types import Namespace, Slots, TransferKind


@dataclass(frozen=True, slots=True, eq=False)
class NodeView:
    """One node.

    `parent`: index of the parent in the snapshot's nodes, or -1 below the root (the root itself is not listed).
    `segment`: the node's own part of the key: token ids as 4-byte little-endian, or pairs of them with bigram keys.
    `start`, `end`: the position of the segment in the whole key, in elements.
    `slots`: per component the device slots of the node, or None where it has none (a tombstone).
    `locks`: per component the number of receipts that protect the node on the device, those of transfers included.
    `hits`: the number of requests that matched the node or a descendant; None when the cache does not count them.
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
    """The slots of one component's pool on a tier. `capacity`: allocatable slots. `free`: the set of free slots."""

    capacity: int
    free: Slots


@dataclass(frozen=True, slots=True, eq=False)
class HostNodeView:
    """What the host tier adds to one node.

    `slots`: per component the host slots of the node, or None. `locks`: per component the host lock count.
    `pins`, `host_pins`: how many of the device locks and of the host locks the cache itself holds, for its transfers
    and for loads that are not yet claimed.
    """

    slots: Mapping[str, Slots | None]
    locks: Mapping[str, int]
    pins: Mapping[str, int]
    host_pins: Mapping[str, int]


@dataclass(frozen=True, slots=True, eq=False)
class TransferView:
    """One queued or running transfer: its device slots and its host slots, by component, in the same order.

    The target slots (a backup's host slots, a load's device slots) belong to the transfer until it is applied.
    """

    kind: TransferKind
    device: Mapping[str, Slots]
    host: Mapping[str, Slots]


@dataclass(frozen=True, slots=True, eq=False)
class HostView:
    """The host tier.

    `nodes`: one for each node of the snapshot, in the same order. `pools`: by component. `kept`: by component, device
    slots of finished loads that the tree did not take, because it now has other slots for the same tokens. They are
    kept for their readers until the loads are claimed or abandoned.
    """

    nodes: tuple[HostNodeView, ...]
    pools: Mapping[str, PoolView]
    transfers: tuple[TransferView, ...]
    kept: Mapping[str, Slots]


@dataclass(frozen=True, slots=True, eq=False)
class FetchView:
    """One prefetch that holds host slots. `host`: by component, the slots that belong to it and to no node."""

    host: Mapping[str, Slots]


@dataclass(frozen=True, slots=True, eq=False)
class StorageView:
    """The storage tier.

    `persisted`: for each node of the snapshot, in the same order, the components that were written to storage; None
    when the cache does not record them.
    `fetches`: the prefetches that hold host slots, including those that no caller waits for.
    `abandoned`: while an abandoned backend is still in a call, by component, the host slots that it may read or write
    and that belong to no node; nodes that it reads from are pinned. None when there is no such backend.
    """

    persisted: tuple[frozenset[str], ...] | None
    fetches: tuple[FetchView, ...]
    abandoned: Mapping[str, Slots] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The whole cache at one moment. Parents precede their children. `host`, `storage`: None without that tier."""

    nodes: tuple[NodeView, ...]
    pools: Mapping[str, PoolView]
    host: HostView | None
    storage: StorageView | None

    def prefix(self, index: int) -> bytes:
        """The whole key of a node, from the root to the node's end."""
        parts: list[bytes] = []
        while index >= 0:
            parts.append(self.nodes[index].segment)
            index = self.nodes[index].parent
        return b"".join(reversed(parts))


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """One block that a lookup can find.

    `number`: of the physical block in its pool, above 0; its slots are number * slots of a block + offset. `prefix`:
    all tokens up to the block's end, token ids as 4-byte little-endian; for MAMBA those that the state was computed
    from. `references`: how often it stands in the tables of running requests. `pins`: how many pins keep it besides.
    """

    component: str
    number: int
    namespace: Namespace
    prefix: bytes
    references: int
    pins: int = 0


@dataclass(frozen=True, slots=True)
class BlockPool:
    """One pool of physical blocks, and the components that take from it.

    `capacity`: allocatable blocks. `blank`: the numbers of those that are free and cache nothing. `queue`: the numbers
    of all that can be allocated, in the order in which they will be; None when the cache does not show it.
    """

    components: tuple[str, ...]
    capacity: int
    blank: tuple[int, ...]
    queue: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChunkView:
    """One chunk of FULL beside the device that a lookup can find.

    `prefix`: all tokens up to the chunk's end, token ids as 4-byte little-endian. `slots`: those of the host, one for
    each token of the chunk, or None. `is_stored`: whether storage has it. `pins`: how many lookups hold it.
    """

    namespace: Namespace
    prefix: bytes
    slots: Slots | None
    is_stored: bool
    pins: int


@dataclass(frozen=True, slots=True, eq=False)
class OffloadView:
    """What a cache beside the device keeps. `pool`: of the host. `transfers`: those that were not applied yet.

    The target slots of a transfer belong to it until it is applied, also if its request has ended; so do the device
    slots that it reads.
    """

    chunks: tuple[ChunkView, ...]
    pool: PoolView
    transfers: tuple[TransferView, ...]


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """The whole state of a cache of blocks at one moment. Its running requests show their blocks by `tables`.

    `offload`: with the profile offload, which has no cached blocks, what is beside the device; else None.
    """

    blocks: tuple[CachedBlock, ...]
    pools: tuple[BlockPool, ...]
    offload: OffloadView | None = None
