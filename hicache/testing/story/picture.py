"""Picture: what is drawn of a cache at one moment: the nodes of the tree, the pools, and the running transfers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from hicache.testing.adapter import PendingTransfer
from hicache.testing.snapshot import HostView, Snapshot
from hicache.testing.story.cells import Cell, Cells
from hicache.testing.story.fills import Fill, fills
from hicache.testing.story.words import Words
from hicache.testing.violation import violation
from hicache.types import Tier, TransferKind

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
        pending: Sequence[PendingTransfer],
        words: Words,
        marks: Collection[tuple[Mark, bytes]],
    ) -> None:
        if snapshot.host is None:
            raise violation("POOL-1", "snapshot", "a host tier", None)
        self._snapshot = snapshot
        self._host: HostView = snapshot.host
        self._movements = tuple(Movement(one.kind, one.layers, one.layers_done) for one in pending)
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
