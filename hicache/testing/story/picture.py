"""Picture: what is drawn of a cache at one moment: the nodes of the tree, the pools, and the running transfers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from hicache.testing.adapter import Pending
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot
from hicache.testing.violation import violation
from hicache.types import Component, Slots, Tier, TransferKind

REQUEST, TRANSFER = "request", "transfer"
"""Who can lock a node."""


class Mark(str, Enum):
    """The two nodes that a match returns."""

    ANCHOR = "device anchor"
    BEST = "best match"


@dataclass(frozen=True, slots=True)
class Row:
    """One node. `lines`: for each of its ancestors, then for itself, whether a sibling follows below it.

    `locked_by`: who locks it on each tier: REQUEST, or TRANSFER for a transfer of the cache itself.
    """

    lines: tuple[bool, ...]
    pages: tuple[str, ...]
    cells: Mapping[Tier, tuple[Cell, ...]]
    locked_by: Mapping[Tier, tuple[str, ...]]
    marks: tuple[Mark, ...]

    @property
    def text(self) -> str:
        """The words of all pages."""
        return " ".join(self.pages)

    @property
    def lockers(self) -> tuple[str, ...]:
        """Who locks it on any tier."""
        return tuple(dict.fromkeys(who for names in self.locked_by.values() for who in names))


@dataclass(frozen=True, slots=True)
class Movement:
    """One running transfer, and how many of its layers are done."""

    kind: TransferKind
    layers: int
    layers_done: int


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is drawn. `root`: the marks at the root, which has no row of its own."""

    root: tuple[Mark, ...]
    rows: tuple[Row, ...]
    fills: tuple[Fill, ...]
    movements: tuple[Movement, ...]


class Painter:
    """Makes the picture of a snapshot. `marks`: each mark with the key, as bytes, at whose end it is drawn.

    Raises InvariantError for a snapshot without a host tier.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        pending: Sequence[Pending],
        words: Words,
        marks: Collection[tuple[Mark, bytes]],
    ) -> None:
        if snapshot.host is None:
            raise violation("POOL-1", "snapshot", "a host tier", None)
        self._snapshot = snapshot
        self._host: HostView = snapshot.host
        self._movements = tuple(
            Movement(one.kind, one.units, one.units_done) for one in pending if isinstance(one.kind, TransferKind)
        )
        progress = {one.kind: one.layers_done / one.layers for one in self._movements}
        self._cells = Cells(snapshot, self._host, progress)
        self._words = words
        self._marks = marks

    def picture(self) -> Picture:
        """Make the picture."""
        pools = tuple(fills(self._snapshot, self._host, self._words.page_size))
        return Picture(self._marks_at(b""), tuple(self._rows(-1, ())), pools, self._movements)

    def _rows(self, parent: int, above: tuple[bool, ...]) -> Iterator[Row]:
        """The nodes below a node, depth first. Siblings are in the order in which their words first appeared."""
        nodes = self._snapshot.nodes
        children = [number for number, node in enumerate(nodes) if node.parent == parent]
        children.sort(key=lambda number: int.from_bytes(nodes[number].segment[:4], "little"))
        for child in children:
            lines = (*above, child != children[-1])
            yield self._row(child, lines)
            yield from self._rows(child, lines)

    def _row(self, node: int, lines: tuple[bool, ...]) -> Row:
        view, host = self._snapshot.nodes[node], self._host.nodes[node]
        return Row(
            lines=lines,
            pages=self._words.pages(view.segment),
            cells={tier: self._cells.of(node, tier) for tier in (Tier.DEVICE, Tier.HOST)},
            locked_by={
                Tier.DEVICE: tuple(_lockers(view.locks, host.pins)),
                Tier.HOST: tuple(_lockers(host.locks, host.host_pins)),
            },
            marks=self._marks_at(self._snapshot.prefix(node)),
        )

    def _marks_at(self, prefix: bytes) -> tuple[Mark, ...]:
        return tuple(mark for mark, key in self._marks if key == prefix)


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
class Cell:
    """One component of one node on one tier. `arrived`: the share of layers that may be read, from 0 to 1."""

    component: str
    tier: Tier
    residency: Residency
    arrived: float
    is_locked: bool


class Cells:
    """Reads cells from a snapshot of a cache with a host tier.

    `progress`: for each kind of transfer, the share of its layers that are done, from 0 to 1.
    """

    def __init__(self, snapshot: Snapshot, host: HostView, progress: Mapping[TransferKind, float]) -> None:
        self._tiers: Mapping[Tier, Sequence[NodeView | HostNodeView]] = {
            Tier.DEVICE: snapshot.nodes,
            Tier.HOST: host.nodes,
        }
        self._progress = progress
        self._sources = _sources(host)

    def of(self, node: int, tier: Tier) -> tuple[Cell, ...]:
        """The cells of a node on a tier, in order of component rank."""
        return tuple(self._cell(node, tier, component) for component in self._tiers[tier][node].slots)

    def _cell(self, node: int, tier: Tier, component: str) -> Cell:
        view = self._tiers[tier][node]
        residency = self._residency(node, tier, component)
        is_here = residency is Residency.HERE
        is_arriving = residency is Residency.ARRIVING
        arrived = self._progress.get(_BRINGS[tier], 0.0) if is_arriving else float(is_here)
        return Cell(component, tier, residency, arrived, is_locked=is_here and view.locks[component] > 0)

    def _residency(self, node: int, tier: Tier, component: str) -> Residency:
        slots = self._tiers[tier][node].slots
        if slots[component] is not None:
            return Residency.HERE
        source = self._tiers[_OTHER[tier]][node].slots[component]
        if source is not None and not self._sources[_BRINGS[tier], component].isdisjoint(source.tolist()):
            return Residency.ARRIVING
        return Residency.ABSENT if slots[Component.FULL] is None else Residency.TOMBSTONE


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
            yield Fill(component, tier, _shares(pool, in_tree, _moving(host, tier, component), unit))


def _shares(pool: PoolView, in_tree: int, moving: int, unit: int) -> Mapping[Owner, int]:
    free = len(pool.free)
    return {
        Owner.TREE: in_tree // unit,
        Owner.TRANSFER: moving // unit,
        Owner.REQUEST: (pool.capacity - free - in_tree - moving) // unit,
        Owner.FREE: free // unit,
    }


def _moving(host: HostView, tier: Tier, component: str) -> int:
    """Slots that a transfer fills, or that are kept for the readers of a load-back that has ended."""
    kind = TransferKind.LOAD if tier is Tier.DEVICE else TransferKind.BACKUP
    ends = [one.device if tier is Tier.DEVICE else one.host for one in host.transfers if one.kind is kind]
    kept = host.kept if tier is Tier.DEVICE else {}
    return sum(len(slots[component]) for slots in (*ends, kept) if component in slots)


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

    def pages(self, segment: bytes) -> tuple[str, ...]:
        """The words of each page of a segment (token ids, 4 bytes little-endian each)."""
        known = list(self._tokens)
        words = [known[token] for token in np.frombuffer(segment, dtype="<i4").tolist()]
        size = self.page_size
        return tuple(" ".join(words[first : first + size]) for first in range(0, len(words), size))
