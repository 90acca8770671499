"""What is drawn of a snapshot: cells, rows, fills and words, from snapshots that are made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from hicache.errors import InvariantError
from hicache.testing.adapter import PendingTransfer
from hicache.testing.snapshot import HostNodeView, HostView, NodeView, PoolView, Snapshot, TransferView
from hicache.testing.story.picture import Cell, Mark, Owner, Painter, Picture, Row, Words
from hicache.types import SHARED, Slots, Tier, TransferKind

NAMES = ("full", "swa", "mamba")
NO_LOCKS = dict.fromkeys(NAMES, 0)


def slots(*numbers: int) -> Slots:
    """Slots by number."""
    return np.array(numbers, dtype=np.int64)


def held(full: Slots | None = None, swa: Slots | None = None, mamba: Slots | None = None) -> Mapping[str, Slots | None]:
    """What a node holds on a tier."""
    return dict(zip(NAMES, (full, swa, mamba), strict=True))


class Tree:
    """A snapshot under construction, of pages of two words."""

    def __init__(self) -> None:
        self.words = Words(2)
        self.nodes: list[NodeView] = []
        self.below: list[HostNodeView] = []
        self.transfers: list[TransferView] = []
        self.kept: dict[str, Slots] = {}

    def grow(
        self,
        text: str,
        parent: int,
        device: Mapping[str, Slots | None],
        host: Mapping[str, Slots | None],
        *,
        locks: tuple[int, int, int, int] = (0, 0, 0, 0),
    ) -> int:
        """Add a node. `locks`: on the device, of those pins, on the host, of those pins; over every component."""
        segment = np.array(self.words.tokens(text), dtype="<i4").tobytes()
        start = self.nodes[parent].end if parent >= 0 else 0
        counts = [dict.fromkeys(NAMES, count) for count in locks]
        end = start + len(text.split())
        self.nodes.append(NodeView(parent, SHARED, segment, start, end, device, counts[0], hits=0))
        self.below.append(HostNodeView(host, counts[2], counts[1], counts[3]))
        return len(self.nodes) - 1

    def move(self, kind: TransferKind, device: dict[str, Slots], host: dict[str, Slots]) -> None:
        """Add a transfer."""
        self.transfers.append(TransferView(kind, device, host))

    def picture(self, *pending: PendingTransfer, marks: tuple[tuple[Mark, bytes], ...] = ()) -> Picture:
        """What is drawn of it, with pools of ten slots (of four for states) of which the last two are free."""
        pools = {
            name: PoolView(size, slots(size - 1, size)) for name, size in (("full", 10), ("swa", 10), ("mamba", 4))
        }
        host = HostView(tuple(self.below), pools, tuple(self.transfers), self.kept)
        return Painter(Snapshot(tuple(self.nodes), pools, host, storage=None), pending, self.words, marks).picture()


def signs(row: Row, tier: Tier) -> str:
    """The cells of a row as signs."""
    return "".join(cell.residency.value for cell in row.cells[tier])


def cell_of(picture: Picture, tier: Tier, component: str) -> Cell:
    """A cell of the first row."""
    return next(cell for cell in picture.rows[0].cells[tier] if cell.component == component)


def running(kind: TransferKind, layers_done: int) -> PendingTransfer:
    """A transfer that has come so far, of four layers."""
    return PendingTransfer("a ticket", kind, parts=1, layers=4, layers_done=layers_done)


def test_what_a_node_has_is_here_and_what_it_lacks_beside_full_is_a_tombstone() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3)), held())
    row = tree.picture().rows[0]
    assert signs(row, Tier.DEVICE) == "■††", f"FULL alone: {signs(row, Tier.DEVICE)}"
    assert signs(row, Tier.HOST) == "···", f"nothing: {signs(row, Tier.HOST)}"


def test_what_a_backup_reads_is_on_its_way_to_the_host() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3), slots(4, 5), slots(1)), held(slots(2, 3)))
    tree.grow("c d", -1, held(slots(4, 5), slots(6, 7), slots(2)), held())
    tree.move(TransferKind.BACKUP, {"swa": slots(4, 5)}, {"swa": slots(8, 9)})
    picture = tree.picture(running(TransferKind.BACKUP, 3))
    assert [signs(row, Tier.HOST) for row in picture.rows] == ["■○†", "···"], f"one node is copied: {picture.rows}"
    arrived = cell_of(picture, Tier.HOST, "swa").arrived
    assert arrived == 0.75, f"three of four layers have arrived, got {arrived}"


def test_what_a_load_reads_is_on_its_way_to_the_device() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(), held(slots(2, 3), slots(4, 5), slots(1)))
    tree.move(TransferKind.LOAD, {"full": slots(8, 9), "mamba": slots(2)}, {"full": slots(2, 3), "mamba": slots(1)})
    queued = tree.picture()
    assert signs(queued.rows[0], Tier.DEVICE) == "○·○", f"two components are loaded: {queued.rows[0]}"
    arrived = cell_of(queued, Tier.DEVICE, "full").arrived
    assert arrived == 0.0, f"a load that was not started has brought nothing, got {arrived}"
    other_way = tree.picture(running(TransferKind.BACKUP, 4))
    arrived = cell_of(other_way, Tier.DEVICE, "full").arrived
    assert arrived == 0.0, f"a backup's layers are not the load's, got {arrived}"


def test_locks_are_told_apart_from_the_pins_of_transfers() -> None:
    tree = Tree()
    everything = held(slots(2, 3), slots(2, 3), slots(1))
    tree.grow("a b", -1, everything, everything, locks=(2, 1, 0, 0))
    tree.grow("c d", -1, everything, everything, locks=(1, 0, 1, 1))
    tree.grow("e f", -1, everything, everything, locks=(1, 1, 1, 0))
    rows = tree.picture().rows
    lockers = [(row.locked_by[Tier.DEVICE], row.locked_by[Tier.HOST]) for row in rows]
    expected = [(("request", "transfer"), ()), (("request",), ("transfer",)), (("transfer",), ("request",))]
    assert lockers == expected, f"device and host: expected {expected}, got {lockers}"
    both = [row.lockers for row in rows]
    assert both == [("request", "transfer"), ("request", "transfer"), ("transfer", "request")], f"together: {both}"


def test_only_data_that_is_here_is_shown_as_locked() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3)), held(), locks=(1, 0, 0, 0))
    locked = [cell.component for cell in tree.picture().rows[0].cells[Tier.DEVICE] if cell.is_locked]
    assert locked == ["full"], f"of a tombstone only FULL is locked, got {locked}"


def test_rows_go_down_each_branch_in_the_order_of_their_words() -> None:
    tree = Tree()
    tree.words.tokens("a b c d e f g h")
    second = tree.grow("e f", -1, held(slots(2, 3)), held())
    first = tree.grow("a b", -1, held(slots(4, 5)), held())
    tree.grow("g h", second, held(slots(6, 7)), held())
    tree.grow("c d", first, held(slots(8, 9)), held())
    rows = [(row.text, row.lines) for row in tree.picture().rows]
    expected = [("a b", (True,)), ("c d", (True, False)), ("e f", (False,)), ("g h", (False, False))]
    assert rows == expected, f"expected {expected}, got {rows}"


def test_a_mark_stands_where_its_key_ends() -> None:
    tree = Tree()
    node = tree.grow("a b", -1, held(slots(2, 3)), held())
    tree.grow("a b", node, held(slots(4, 5)), held())
    key = tree.nodes[0].segment * 2
    picture = tree.picture(marks=((Mark.ANCHOR, b""), (Mark.BEST, key)))
    assert picture.root == (Mark.ANCHOR,), f"an empty key ends at the root, got {picture.root}"
    assert [row.marks for row in picture.rows] == [(), (Mark.BEST,)], f"whole keys are compared: {picture.rows}"


def test_each_page_of_a_pool_has_one_owner() -> None:
    tree = Tree()
    tree.grow("a b", -1, held(slots(2, 3), None, slots(1)), held(slots(4, 5), slots(2, 3)))
    tree.move(TransferKind.LOAD, {"swa": slots(4, 5)}, {"swa": slots(2, 3)})
    tree.kept = {"full": slots(6, 7)}
    fills = {(fill.tier, fill.component): list(fill.pages.values()) for fill in tree.picture().fills}
    expected = {
        (Tier.DEVICE, "full"): [1, 1, 2, 1],  # what a load left for its readers waits, too
        (Tier.DEVICE, "swa"): [0, 1, 3, 1],
        (Tier.DEVICE, "mamba"): [1, 0, 1, 2],
        (Tier.HOST, "full"): [1, 0, 3, 1],
        (Tier.HOST, "swa"): [1, 0, 3, 1],
        (Tier.HOST, "mamba"): [0, 0, 2, 2],
    }
    assert fills == expected, f"pages of {[owner.name for owner in Owner]}: expected {expected}, got {fills}"


def test_a_cache_without_a_host_tier_cannot_be_drawn() -> None:
    with pytest.raises(InvariantError, match="a host tier"):
        Painter(Snapshot((), {}, None, None), (), Words(2), ())


def test_equal_words_are_equal_tokens_and_come_back_page_by_page() -> None:
    words = Words(2)
    tokens = words.tokens("to be or not to be")
    assert tokens == [0, 1, 2, 3, 0, 1], f"one token per word, got {tokens}"
    pages = words.pages(np.array(tokens, dtype="<i4").tobytes())
    assert pages == ("to be", "or not", "to be"), f"the words of each page, got {pages}"
