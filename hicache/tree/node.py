"""Node: one run of pages in the radix tree, and the data of each component for it on device and host."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hicache.types import Namespace, Slots

FULL = 0
"""The index of FULL among the components of a node. SWA and MAMBA follow, in this order."""


class NodeShape(NamedTuple):
    """What every node of a tree has room for: how many components, and whether they can be on the host too."""

    components: int
    has_host: bool


class Splittable(Protocol):
    """What a node passes on to both parts when it is split: here the transfer that brings its pages."""

    def split(self, upper: Node, lower: Node) -> None:
        """The node was split: the transfer brings pages to both parts."""


class ComponentData:
    """The data of one component of a node on one tier.

    `value`: the pages of the node, int64 [pages]; for MAMBA one state, int64 [1]; None when the component is not on
    this tier (a tombstone). `lock_ref`: how often it is locked. For FULL on the device this counts the node's own
    receipts plus its locked children, so that a lock climbs only where it is the first. `transfer`: what brings pages
    here, or None. `queue_serial`: the entry of the eviction queue that is up to date, or None when the node is not
    queued.
    """

    __slots__ = ("lock_ref", "queue_serial", "transfer", "value")

    def __init__(self) -> None:
        self.value: Slots | None = None
        self.lock_ref = 0
        self.transfer: Splittable | None = None
        self.queue_serial: int | None = None


class Node:
    """A run of whole pages below its parent.

    `root`: of the tree that the node is in; its own for the root, and None once the node was removed.
    `device`, `host`: by component index, what it has on each tier; `host` is empty without a host tier. `edge`: the key
    of this node in `parent.children`. `key`: the bytes of the run. `end`: pages from the root to the end of the node.
    `device_children`, `host_children`: how many children have FULL there. `last_access_time`: by component index.
    FULL's, and `priority`, are those of the requests that ended here; a child that leaves passes its own to the parent.
    `hit_count`: requests that matched the node or a node below it. `backup_failures`: backups that failed. `stored`: by
    component index, whether storage has it. `storing`: the write to storage under way, or None. `store_failures`: how
    often storage did not take it. `hashes`: one SHA-256 digest for each page, once computed.
    """

    __slots__ = (
        "backup_failures",
        "children",
        "creation_time",
        "device",
        "device_children",
        "edge",
        "end",
        "hashes",
        "hit_count",
        "host",
        "host_children",
        "key",
        "last_access_time",
        "namespace",
        "parent",
        "priority",
        "root",
        "store_failures",
        "stored",
        "storing",
    )

    def __init__(self, parent: Node | None, key: bytes, namespace: Namespace, end: int, shape: NodeShape) -> None:
        self.parent = parent
        self.edge = b""
        self.key = key
        self.namespace = namespace
        self.end = end
        self.children: dict[bytes, Node] = {}
        self.device = [ComponentData() for _ in range(shape.components)]
        self.host = [ComponentData() for _ in range(shape.components)] if shape.has_host else []
        self.device_children = 0
        self.host_children = 0
        self.last_access_time = [0] * shape.components
        self.creation_time = 0
        self.priority = 0
        self.hit_count = 0
        self.backup_failures = 0
        self.stored = [False] * shape.components
        self.storing: object = None
        self.store_failures = 0
        self.hashes: list[bytes] | None = None
        self.root: Node | None = self if parent is None else parent.root

    @property
    def alive(self) -> bool:
        """Whether the node is in a tree."""
        return self.root is not None

    @property
    def is_root(self) -> bool:
        """Whether this is the root, which holds no pages."""
        return self.parent is None

    @property
    def start(self) -> int:
        """Pages from the root to the beginning of the node."""
        return self.parent.end if self.parent else 0

    @property
    def pages(self) -> int:
        """How many pages the node has."""
        return self.end - self.start

    @property
    def is_locked(self) -> bool:
        """Whether any component of the node is locked on any tier."""
        return is_any_locked(self.device) or is_any_locked(self.host)

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

    def last_on_device(self) -> Node:
        """The last node of the path that has FULL on the device, or the root."""
        node = self
        while node.parent is not None and node.device[FULL].value is None:
            node = node.parent
        return node

    def __repr__(self) -> str:
        tiers = f"device {_described(self.device)}" + (f", host {_described(self.host)}" if self.host else "")
        return f"Node(pages {self.start}..{self.end}, {tiers}, alive={self.alive})"


def is_any_locked(tier: list[ComponentData]) -> bool:
    """Whether one of these components is locked."""
    for data in tier:  # noqa: SIM110 - evictions ask this of many nodes; `any` with a generator costs twice as much
        if data.lock_ref:
            return True
    return False


def _described(tier: list[ComponentData]) -> str:
    """Pages and locks of each component, such as `4 locked 1 / -`."""
    texts = ["-" if data.value is None else str(len(data.value)) for data in tier]
    return " / ".join(
        f"{text} locked {data.lock_ref}" if data.lock_ref else text for text, data in zip(texts, tier, strict=True)
    )
