"""Picture: what is drawn of a cache at one moment: the nodes of the tree, the pools, storage, and what is under way."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hicache.testing.adapter import Pending
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot, StorageView
from hicache.testing.story.stored_prompts import StoredPrompts
from hicache.testing.violation import violation
from hicache.types import Component, Slots, StorageKind, Tier, TransferKind

REQUEST, TRANSFER = "request", "transfer"
"""Who can lock a node."""


class PictureMark(str, Enum):
    """The two nodes that a match returns."""

    ANCHOR = "device anchor"
    BEST = "best match"


@dataclass(frozen=True, slots=True)
class PictureRow:
    """One node. `lines`: for each of its ancestors, then for itself, whether a sibling follows below it.

    `cells`: of each tier that the cache has. `locked_by`: who locks it on each tier: REQUEST, or TRANSFER for what the
    cache itself moves. `is_in_tree`: False for pages that only storage has; the tree knows nothing of them.
    """

    lines: tuple[bool, ...]
    pages: tuple[str, ...]
    cells: Mapping[Tier, tuple[PictureCell, ...]]
    locked_by: Mapping[Tier, tuple[str, ...]]
    marks: tuple[PictureMark, ...]
    is_in_tree: bool

    @property
    def text(self) -> str:
        """The words of all pages."""
        return " ".join(self.pages)

    @property
    def lockers(self) -> tuple[str, ...]:
        """Who locks it on any tier."""
        return tuple(dict.fromkeys(who for names in self.locked_by.values() for who in names))


_UNITS: Mapping[TransferKind | StorageKind, str] = {
    TransferKind.BACKUP: "backup: {} of {} layers copied",
    TransferKind.LOAD: "load: {} of {} layers copied",
    StorageKind.QUERY: "query of storage: {} of {} answers given",
    StorageKind.PREFETCH: "prefetch: {} of {} batches read",
    StorageKind.STORE: "write to storage: {} of {} batches written",
}


@dataclass(frozen=True, slots=True)
class Movement:
    """One transfer or request to storage that is under way. `units`: its layers or batches, of which some are done."""

    kind: TransferKind | StorageKind
    units: int
    units_done: int

    @property
    def text(self) -> str:
        """What it is, and how far it has come."""
        return _UNITS[self.kind].format(self.units_done, self.units)


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is drawn. `tiers`: those of the cache. `root`: the marks at the root, which has no row."""

    tiers: tuple[Tier, ...]
    root: tuple[PictureMark, ...]
    rows: tuple[PictureRow, ...]
    fills: tuple[Fill, ...]
    movements: tuple[Movement, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """One row before its cells are known. `parent`: its index among all, or -1. `node`: in the snapshot, or None."""

    parent: int
    segment: bytes
    prefix: bytes
    node: int | None


class Painter:
    """Makes the picture of a snapshot. `marks`: each mark with the key, as bytes, at whose end it is drawn.

    `stored`: what storage has, or None without storage. Raises InvariantError for a snapshot without a host tier.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pending: Sequence[Pending],
        words: Words,
        marks: Collection[tuple[PictureMark, bytes]],
        stored: StoredPrompts | None,
    ) -> None:
        if snapshot.host is None:
            raise violation("POOL-1", "snapshot", "a host tier", None)
        self._snapshot = snapshot
        self._host: HostView = snapshot.host
        self._movements = tuple(Movement(one.kind, one.units, one.units_done) for one in pending)
        progress = {one.kind: one.units_done / one.units for one in self._movements}
        self._cells = Cells(snapshot, self._host, progress, stored)
        self._words = words
        self._marks = marks
        self._branches = tuple(branches(snapshot, stored))
        self._tiers = (Tier.DEVICE, Tier.HOST) if stored is None else tuple(Tier)

    def picture(self) -> Picture:
        """Make the picture."""
        pools = tuple(fills(self._snapshot, self._host, self._words.page_size))
        return Picture(self._tiers, self._marks_at(b""), tuple(self._rows(-1, ())), pools, self._movements)

    def _rows(self, parent: int, above: tuple[bool, ...]) -> Iterator[PictureRow]:
        """The rows below one, depth first. Siblings are in the order in which their words first appeared."""
        children = [number for number, branch in enumerate(self._branches) if branch.parent == parent]
        children.sort(key=lambda number: int.from_bytes(self._branches[number].segment[:4], "little"))
        for child in children:
            lines = (*above, child != children[-1])
            yield self._row(self._branches[child], lines)
            yield from self._rows(child, lines)

    def _row(self, branch: Branch, lines: tuple[bool, ...]) -> PictureRow:
        return PictureRow(
            lines=lines,
            pages=self._words.pages(branch.segment),
            cells={tier: self._cells.of(branch, tier) for tier in self._tiers},
            locked_by={
                Tier.DEVICE: () if branch.node is None else tuple(self._device_lockers(branch.node)),
                Tier.HOST: () if branch.node is None else tuple(self._host_lockers(branch.node)),
            },
            marks=self._marks_at(branch.prefix),
            is_in_tree=branch.node is not None,
        )

    def _device_lockers(self, node: int) -> Iterator[str]:
        return _lockers(self._snapshot.nodes[node].locks, self._host.nodes[node].pins)

    def _host_lockers(self, node: int) -> Iterator[str]:
        return _lockers(self._host.nodes[node].locks, self._host.nodes[node].host_pins)

    def _marks_at(self, prefix: bytes) -> tuple[PictureMark, ...]:
        return tuple(mark for mark, key in self._marks if key == prefix)


def branches(snapshot: Snapshot, stored: StoredPrompts | None) -> Iterator[Branch]:
    """The nodes of the tree, then what only storage has: of each prompt the pages past the tree, shorter ones first."""
    known: dict[bytes, int] = {}
    for number, node in enumerate(snapshot.nodes):
        prefix = snapshot.prefix(number)
        known[prefix] = number
        yield Branch(node.parent, node.segment, prefix, number)
    for prefix in stored.stored_prefixes() if stored is not None else ():
        start = max((len(one) for one in known if prefix.startswith(one)), default=0)
        if start < len(prefix):
            yield Branch(known.get(prefix[:start], -1), prefix[start:], prefix, None)
            known[prefix] = len(known)


def _lockers(locks: Mapping[str, int], pins: Mapping[str, int]) -> Iterator[str]:
    if any(count > pins[component] for component, count in locks.items()):
        yield REQUEST
    if any(pins.values()):
        yield TRANSFER


class Residency(str, Enum):
    """Whether data is on a tier. The value is the sign in a text drawing."""

    HERE = "■"
    ARRIVING = "○"
    TOMBSTONE = "†"
    ABSENT = "·"


@dataclass(frozen=True, slots=True)
class PictureCell:
    """One component of one node on one tier. `arrived`: the share of layers that may be read, from 0 to 1."""

    component: str
    tier: Tier
    residency: Residency
    arrived: float
    is_locked: bool


class Cells:
    """Reads cells from a snapshot of a cache with a host tier.

    `progress`: for each kind of what is under way, the share of it that is done, from 0 to 1. `stored`: what storage
    has, or None without storage.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        host: HostView,
        progress: Mapping[TransferKind | StorageKind, float],
        stored: StoredPrompts | None,
    ) -> None:
        self._tiers: Mapping[Tier, Sequence[NodeView | HostNodeView]] = {
            Tier.DEVICE: snapshot.nodes,
            Tier.HOST: host.nodes,
        }
        self._components = tuple(snapshot.pools)
        self._host = host
        self._progress = progress
        self._sources = _sources(host)
        self._stored_prompts = stored
        fetches = () if snapshot.storage is None else snapshot.storage.fetches
        self._fetched = {name for fetch in fetches for name, slots in fetch.host.items() if len(slots)}

    def of(self, branch: Branch, tier: Tier) -> tuple[PictureCell, ...]:
        """The cells of a row on a tier, in order of component rank."""
        if tier is Tier.STORAGE:
            return tuple(self._stored(branch))
        if branch.node is None:
            return tuple(self._absent(branch, tier))
        return tuple(self._cell(branch.node, tier, component) for component in self._tiers[tier][branch.node].slots)

    def _cell(self, node: int, tier: Tier, component: str) -> PictureCell:
        view = self._tiers[tier][node]
        residency = self._residency(node, tier, component)
        is_locked = residency is Residency.HERE and view.locks[component] > 0
        return self._drawn(component, tier, residency, _BRINGS[tier], is_locked=is_locked)

    def _residency(self, node: int, tier: Tier, component: str) -> Residency:
        slots = self._tiers[tier][node].slots
        if slots[component] is not None:
            return Residency.HERE
        source = self._tiers[_OTHER[tier]][node].slots[component]
        if source is not None and not self._sources[_BRINGS[tier], component].isdisjoint(source.tolist()):
            return Residency.ARRIVING
        return Residency.ABSENT if slots[Component.FULL] is None else Residency.TOMBSTONE

    def _absent(self, branch: Branch, tier: Tier) -> Iterator[PictureCell]:
        """Of what only storage has, what a prefetch brings to the host."""
        is_awaited = (
            tier is Tier.HOST and self._stored_prompts is not None and self._stored_prompts.is_awaited(branch.prefix)
        )
        for component in self._components:
            is_arriving = is_awaited and component in self._fetched
            residency = Residency.ARRIVING if is_arriving else Residency.ABSENT
            yield self._drawn(component, tier, residency, StorageKind.PREFETCH, is_locked=False)

    def _stored(self, branch: Branch) -> Iterator[PictureCell]:
        """What storage has. A page is there as a whole or not at all, so nothing of what arrives can be read yet."""
        assert self._stored_prompts is not None, "storage is drawn where the cache has it"
        stored = {name: self._stored_prompts.has(branch.prefix, len(branch.segment), name) for name in self._components}
        for component in self._components:
            residency = Residency.TOMBSTONE if stored[Component.FULL] else Residency.ABSENT
            if stored[component]:
                residency = Residency.HERE
            elif branch.node is not None and self._is_written(branch.node, component):
                residency = Residency.ARRIVING
            yield PictureCell(component, Tier.STORAGE, residency, float(residency is Residency.HERE), is_locked=False)

    def _is_written(self, node: int, component: str) -> bool:
        """Whether a write is under way that reads the host copy: a write locks what it reads."""
        host = self._host.nodes[node]
        is_read = host.slots[component] is not None and host.host_pins[component] > 0
        return StorageKind.STORE in self._progress and is_read

    def _drawn(
        self, component: str, tier: Tier, residency: Residency, brings: TransferKind | StorageKind, *, is_locked: bool
    ) -> PictureCell:
        is_arriving = residency is Residency.ARRIVING
        arrived = self._progress.get(brings, 0.0) if is_arriving else float(residency is Residency.HERE)
        return PictureCell(component, tier, residency, arrived, is_locked)


_OTHER = {Tier.DEVICE: Tier.HOST, Tier.HOST: Tier.DEVICE}
_BRINGS = {Tier.DEVICE: TransferKind.LOAD, Tier.HOST: TransferKind.BACKUP}


def _sources(host: HostView) -> Mapping[tuple[TransferKind, str], set[int]]:
    """The slots that transfers read from, by kind and component."""
    sources: defaultdict[tuple[TransferKind, str], set[int]] = defaultdict(set)
    for transfer in host.transfers:
        ends: Mapping[str, Slots] = transfer.device if transfer.kind is TransferKind.BACKUP else transfer.host
        for component, slots in ends.items():
            sources[transfer.kind, component].update(slots.tolist())
    return sources


class Owner(str, Enum):
    """Who owns a page. The value is the sign in a text drawing."""

    TREE = "■"
    TRANSFER = "○"
    REQUEST = "□"
    FREE = "·"


@dataclass(frozen=True, slots=True)
class Fill:
    """The number of pages of a pool (for MAMBA: states) by owner."""

    component: str
    tier: Tier
    pages: Mapping[Owner, int]


def fills(snapshot: Snapshot, host: HostView, page_size: int) -> Iterator[Fill]:
    """The fill of every pool, device pools first. Slots that belong to no one else are those of a request."""
    for tier, pools in ((Tier.DEVICE, snapshot.pools), (Tier.HOST, host.pools)):
        nodes = snapshot.nodes if tier is Tier.DEVICE else host.nodes
        for component, pool in pools.items():
            in_tree = sum(len(held) for node in nodes if (held := node.slots[component]) is not None)
            unit = 1 if component == Component.MAMBA else page_size
            yield Fill(component, tier, _shares(pool, in_tree, _moving(host, snapshot.storage, tier, component), unit))


def _shares(pool: PoolView, in_tree: int, moving: int, unit: int) -> Mapping[Owner, int]:
    free = len(pool.free)
    return {
        Owner.TREE: in_tree // unit,
        Owner.TRANSFER: moving // unit,
        Owner.REQUEST: (pool.capacity - free - in_tree - moving) // unit,
        Owner.FREE: free // unit,
    }


def _moving(host: HostView, storage: StorageView | None, tier: Tier, component: str) -> int:
    """Slots that a transfer or a prefetch fills, or that are kept for the readers of a load-back that has ended."""
    kind = TransferKind.LOAD if tier is Tier.DEVICE else TransferKind.BACKUP
    ends = [one.device if tier is Tier.DEVICE else one.host for one in host.transfers if one.kind is kind]
    if tier is Tier.DEVICE:
        ends.append(host.kept)
    elif storage is not None:
        ends += [fetch.host for fetch in storage.fetches]
    return sum(len(slots[component]) for slots in ends if component in slots)


class Words:
    """A vocabulary in which each word is one token, so that a picture can show tokens as words.

    Turns texts into tokens, and the segments of nodes back into words. A new word gets the next token id.
    """

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self._tokens: dict[str, int] = {}

    def tokens(self, text: str) -> list[int]:
        """One token for each word; equal words have equal tokens."""
        return [self._tokens.setdefault(word, len(self._tokens)) for word in text.split()]

    def prefix(self, text: str) -> bytes:
        """The same as a prefix: 4 bytes little-endian for each token."""
        return np.array(self.tokens(text), dtype="<i4").tobytes()

    def pages(self, segment: bytes) -> tuple[str, ...]:
        """The words of each page of a segment (token ids, 4 bytes little-endian each)."""
        known = list(self._tokens)
        words = [known[token] for token in np.frombuffer(segment, dtype="<i4").tolist()]
        size = self.page_size
        return tuple(" ".join(words[first : first + size]) for first in range(0, len(words), size))
