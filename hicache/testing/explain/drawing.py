"""A cache on device, host and storage as text: the nodes of its tree, its transfers, and the owners of its pages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from hicache.testing.adapter import Pending
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot
from hicache.types import Component, StorageKind, Tier, TransferKind

HERE, ARRIVING, TOMBSTONE, ABSENT = "■", "○", "†", "·"
IN_TREE, RESERVED, OF_REQUEST, FREE = "■", "○", "□", "·"
LEGEND = """\
F  FULL: keys and values of the layers that attend to the whole prefix
S  SWA: keys and values of sliding-window layers; they need the last 16 tokens
M  MAMBA: one recurrent state, valid only for a prefix of exactly this length

     in the tree                                pages of each pool (M: states)
 ■   resident                                   ■  in the tree
 ○   arriving by a transfer                     ○  reserved for a transfer
 †   tombstone: FULL is resident, this is not   □  owned by a request
 ·   not resident                               ·  free
[■]  locked: must not be evicted
"""
STORED_ONLY = "in storage only"
"""The note at pages for which the tree has no node."""

_BRINGS = {Tier.DEVICE: TransferKind.LOAD, Tier.HOST: TransferKind.BACKUP}
_OTHER = {Tier.DEVICE: Tier.HOST, Tier.HOST: Tier.DEVICE}
_UNITS = {
    TransferKind.BACKUP: "layers copied",
    TransferKind.LOAD: "layers copied",
    StorageKind.QUERY: "answers given",
    StorageKind.PREFETCH: "batches read",
    StorageKind.STORE: "batches written",
}


@dataclass(frozen=True, slots=True)
class DrawnRow:
    """One node, or pages that only storage has.

    `lines`: for each ancestor, then for itself, whether a sibling follows. `pages`: the words of each page. `cells`: of
    each tier the signs of FULL, SWA and MAMBA, in brackets if locked. `locks`: who locks it, on the host as `host …`.
    `mark`: which end of the last match it is, or empty.
    """

    lines: tuple[bool, ...]
    pages: tuple[str, ...]
    cells: Mapping[Tier, str]
    locks: tuple[str, ...]
    mark: str

    @property
    def signs(self) -> str:
        """The signs of each tier, without locks."""
        return " ".join("".join(sign for sign in cells if sign not in "[ ]") for cells in self.cells.values())


@dataclass(frozen=True, slots=True)
class StoredPages:
    """What storage may have. Prefixes are bytes: token ids, 4 bytes little-endian each.

    `prompts`: those whose pages may be stored. `fetched`: the prompt that a prefetch reads now, or empty. `has`: for a
    component and a prefix, whether each page of it is stored. `is_writing`: whether a write is under way. `page_bytes`:
    of a page in a prefix.
    """

    prompts: Sequence[bytes]
    fetched: bytes
    has: Callable[[str, bytes], Sequence[bool]]
    is_writing: bool
    page_bytes: int


class TreeRows:
    """The rows of a snapshot with a host tier. `stored`: None without storage. `marks`: by the prefix of their node."""

    def __init__(
        self,
        snapshot: Snapshot,
        host: HostView,
        pages_of: Callable[[bytes], tuple[str, ...]],
        stored: StoredPages | None,
        marks: Mapping[bytes, str],
    ) -> None:
        self._views: Mapping[Tier, Sequence[NodeView | HostNodeView]] = {
            Tier.DEVICE: snapshot.nodes,
            Tier.HOST: host.nodes,
        }
        self._host, self._pages_of, self._stored, self._marks = host, pages_of, stored, marks
        self._components = tuple(snapshot.pools)
        fetches = () if snapshot.storage is None else snapshot.storage.fetches
        self._fetched = {name for fetch in fetches for name, slots in fetch.host.items() if len(slots)}
        self._sources: defaultdict[tuple[TransferKind, str], set[int]] = defaultdict(set)
        for transfer in host.transfers:
            read = transfer.device if transfer.kind is TransferKind.BACKUP else transfer.host
            for component, slots in read.items():
                self._sources[transfer.kind, component].update(slots.tolist())
        self._nodes = {snapshot.prefix(number): number for number in range(len(snapshot.nodes))}
        self._starts = {prefix: snapshot.nodes[number].start * 4 for prefix, number in self._nodes.items()}
        for prefix in sorted(self._stored_prefixes(), key=len):
            start = max((len(one) for one in self._starts if prefix.startswith(one)), default=0)
            if start < len(prefix):
                self._starts[prefix] = start

    def rows(self, parent: bytes = b"", above: tuple[bool, ...] = ()) -> Iterator[DrawnRow]:
        """The rows below a prefix, depth first. Siblings are in the order of their first tokens."""
        children = [prefix for prefix, start in self._starts.items() if prefix[:start] == parent]
        tiers = (*self._views, *([Tier.STORAGE] if self._stored else ()))
        children.sort(key=lambda prefix: int.from_bytes(prefix[len(parent) :][:4], "little"))
        for prefix in children:
            lines = (*above, prefix != children[-1])
            cells = {tier: self._cells(prefix, tier) for tier in tiers}
            locks = tuple(self._locks(prefix))
            yield DrawnRow(lines, self._pages_of(prefix[len(parent) :]), cells, locks, self._marks.get(prefix, ""))
            yield from self.rows(prefix, lines)

    def _stored_prefixes(self) -> Iterator[bytes]:
        """Of each prompt the first pages whose FULL data is stored."""
        if self._stored is not None:
            for prompt in self._stored.prompts:
                pages = [*self._stored.has(Component.FULL.value, prompt), False].index(False)
                yield prompt[: pages * self._stored.page_bytes]

    def _locks(self, prefix: bytes) -> Iterator[str]:
        number = self._nodes.get(prefix)
        if number is None:
            yield STORED_ONLY
            return
        view = self._host.nodes[number]
        for tier, pins, label in ((Tier.DEVICE, view.pins, ""), (Tier.HOST, view.host_pins, "host ")):
            locks = self._views[tier][number].locks
            if any(count > pins[component] for component, count in locks.items()):
                yield f"{label}request"
            if any(pins.values()):
                yield f"{label}transfer"

    def _cells(self, prefix: bytes, tier: Tier) -> str:
        number = self._nodes.get(prefix)
        locks = self._views[tier][number].locks if number is not None and tier in self._views else {}
        signs = {name: self._sign(prefix, number, tier, name) for name in self._components}
        return "".join(f"[{sign}]" if sign == HERE and locks.get(name) else f" {sign} " for name, sign in signs.items())

    def _sign(self, prefix: bytes, number: int | None, tier: Tier, component: str) -> str:
        if tier is Tier.STORAGE:
            return self._stored_sign(prefix, number, component)
        if number is None:
            is_fetched = self._stored is not None and self._stored.fetched.startswith(prefix)
            return ARRIVING if tier is Tier.HOST and is_fetched and component in self._fetched else ABSENT
        slots, other = (self._views[one][number].slots for one in (tier, _OTHER[tier]))
        if slots[component] is not None:
            return HERE
        source = other[component]
        if source is not None and not self._sources[_BRINGS[tier], component].isdisjoint(source.tolist()):
            return ARRIVING
        return ABSENT if slots[Component.FULL] is None else TOMBSTONE

    def _stored_sign(self, prefix: bytes, number: int | None, component: str) -> str:
        """A write locks the host copy that it reads."""
        if self._is_stored(prefix, component):
            return HERE
        assert self._stored is not None, "only a cache with storage has these cells"
        if number is not None and self._stored.is_writing:
            host = self._host.nodes[number]
            if host.slots[component] is not None and host.host_pins[component] > 0:
                return ARRIVING
        return TOMBSTONE if self._is_stored(prefix, Component.FULL.value) else ABSENT

    def _is_stored(self, prefix: bytes, component: str) -> bool:
        """Whether storage has all pages of a node, or the state at its end."""
        assert self._stored is not None, "only a cache with storage has these cells"
        own = len(prefix) - self._starts[prefix]
        pages = 1 if component == Component.MAMBA else own // self._stored.page_bytes
        return all([False, *self._stored.has(component, prefix)][-pages:])


def pool_lines(snapshot: Snapshot, host: HostView, page_size: int) -> Iterator[tuple[str, ...]]:
    """For each tier its name, and one sign for each page of each pool, by owner."""
    fetches = () if snapshot.storage is None else snapshot.storage.fetches
    ends = {
        Tier.DEVICE: [*(one.device for one in host.transfers if one.kind is TransferKind.LOAD), host.kept],
        Tier.HOST: [
            *(one.host for one in host.transfers if one.kind is TransferKind.BACKUP),
            *(fetch.host for fetch in fetches),
        ],
    }
    for tier, nodes, pools in ((Tier.DEVICE, snapshot.nodes, snapshot.pools), (Tier.HOST, host.nodes, host.pools)):
        bars = []
        for name, pool in pools.items():
            held = sum(len(slots) for node in nodes if (slots := node.slots[name]) is not None)
            reserved = sum(len(slots[name]) for slots in ends[tier] if name in slots)
            bars.append(_bar(pool, held, reserved, 1 if name == Component.MAMBA else page_size))
        yield f"{tier.value} pages", *(f"{name[0].upper()} {bar}" for name, bar in zip(pools, bars, strict=True))


def _bar(pool: PoolView, held: int, reserved: int, unit: int) -> str:
    free = len(pool.free)
    owners = ((IN_TREE, held), (RESERVED, reserved), (OF_REQUEST, pool.capacity - free - held - reserved), (FREE, free))
    return "".join(sign * (count // unit) for sign, count in owners)


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is drawn after a step. `root_mark`: the end of the last match that is the root, or empty."""

    tiers: tuple[Tier, ...]
    root_mark: str
    rows: tuple[DrawnRow, ...]
    pending: tuple[Pending, ...]
    pools: tuple[tuple[str, ...], ...]

    def show(self, console: Console) -> None:
        """Print the drawing: a line for each page of a node, the transfers, and the pools."""
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
        for header in ("\n", *(f" {tier.value}\n F  S  M " for tier in self.tiers)):
            table.add_column(header, no_wrap=True)
        table.add_column("\nlocked by")
        table.add_column("\n")
        table.add_row("root", *("" for _ in self.tiers), "", self.root_mark)
        for row in self.rows:
            table.add_row(_branches(row), *row.cells.values(), ", ".join(row.locks), row.mark)
        pools = Table.grid(padding=(0, 2))
        for line in self.pools:
            pools.add_row(*line)
        transfers = [f"{one.kind.value}: {one.units_done} of {one.units} {_UNITS[one.kind]}" for one in self.pending]
        parts: list[str | Table] = [table, *transfers, pools]
        for part in parts:
            console.print(Padding(part, (0, 0, 1, 3)), markup=False, highlight=False)


def _branches(row: DrawnRow) -> str:
    """The pages of a node one below the other, behind the branches of the tree."""
    *above, follows = row.lines
    indent = "".join("│  " if line else "   " for line in above)
    return f"{indent}{'├' if follows else '└'}─ " + f"\n{indent}{'│' if follows else ' '}  ".join(row.pages)
