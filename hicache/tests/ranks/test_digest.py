"""TreeDigest: equal for equal trees in any slots, and different when anything else differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hicache.testing.ranks.digest import digest_of, tree_differences
from hicache.testing.snapshot import FetchView, HostNodeView, HostView, NodeView, PoolView, Snapshot, StorageView
from hicache.testing.snapshot import TransferView as Transfer
from hicache.types import SHARED, Namespace, Slots, TransferKind


def slots(first: int, count: int) -> Slots:
    """`count` consecutive slots."""
    return np.arange(first, first + count, dtype=np.int64)


def tokens(*numbers: int) -> bytes:
    """The segment of a node."""
    return np.array(numbers, dtype="<i4").tobytes()


def node(segment: bytes, parent: int, start: int, first_slot: int) -> NodeView:
    """A node that is on the device and locked once."""
    count = len(segment) // 4
    return NodeView(
        parent, SHARED, segment, start, start + count, {"full": slots(first_slot, count)}, {"full": 1}, hits=2
    )


def snapshot_of(first_slot: int, *, reverse: bool = False) -> Snapshot:
    """Two nodes below the root, in slots from `first_slot` on, the second one also on the host; a backup in flight."""
    nodes = [node(tokens(1, 2), -1, 0, first_slot), node(tokens(7, 8), -1, 0, first_slot + 2)]
    below = [
        HostNodeView({"full": held}, {"full": 0}, {"full": 0}, {"full": 0}) for held in (None, slots(first_slot, 2))
    ]
    marks = [frozenset[str](), frozenset({"full"})]
    if reverse:
        nodes, below, marks = nodes[::-1], below[::-1], marks[::-1]
    pools = {"full": PoolView(8, slots(first_slot + 4, 3))}
    backup = Transfer(TransferKind.BACKUP, {"full": slots(first_slot, 2)}, {"full": slots(first_slot, 2)})
    host = HostView(tuple(below), pools, (backup,), {"full": slots(0, 0)})
    return Snapshot(tuple(nodes), pools, host, StorageView(tuple(marks), (FetchView({"full": slots(1, 1)}),)))


def first(snapshot: Snapshot, **changes: object) -> Snapshot:
    """The same snapshot with another first node."""
    return replace(snapshot, nodes=(replace(snapshot.nodes[0], **changes), *snapshot.nodes[1:]))  # type: ignore[arg-type]


def below(snapshot: Snapshot, **changes: object) -> Snapshot:
    """The same snapshot with another host part of the second node."""
    assert snapshot.host is not None
    views = (snapshot.host.nodes[0], replace(snapshot.host.nodes[1], **changes))  # type: ignore[arg-type]
    return replace(snapshot, host=replace(snapshot.host, nodes=views))


CHANGES: dict[str, Callable[[Snapshot], Snapshot]] = {
    "key": lambda it: first(it, segment=tokens(1, 3)),
    "namespace": lambda it: first(it, namespace=Namespace("lora", None, None)),
    "residency": lambda it: first(it, slots={"full": None}),
    "locks": lambda it: first(it, locks={"full": 0}),
    "hits": lambda it: first(it, hits=3),
    "host residency": lambda it: below(it, slots={"full": None}),
    "host locks": lambda it: below(it, locks={"full": 1}),
    "pins": lambda it: below(it, pins={"full": 1}),
    "capacity": lambda it: replace(it, pools={"full": PoolView(9, it.pools["full"].free)}),
    "free slots": lambda it: replace(it, pools={"full": PoolView(8, slots(0, 2))}),
    "transfers": lambda it: replace(it, host=replace(it.host, transfers=())),  # type: ignore[type-var]
    "persisted": lambda it: replace(it, storage=StorageView((frozenset(), frozenset()), it.storage.fetches)),  # type: ignore[union-attr]
    "prefetches": lambda it: replace(it, storage=StorageView(it.storage.persisted, ())),  # type: ignore[union-attr]
}


def test_slots_and_the_order_of_nodes_do_not_matter() -> None:
    one, other = digest_of(snapshot_of(10)), digest_of(snapshot_of(50, reverse=True))
    assert one == other, f"RANK-1: expected one digest of one tree in other slots, but:\n{one.difference(other)}"


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_other_difference_is_reported(change: Callable[[Snapshot], Snapshot]) -> None:
    one, other = digest_of(snapshot_of(10)), digest_of(change(snapshot_of(10)))
    messages = tree_differences([one.text, one.text, other.text])
    assert messages.startswith("rank 2 has + where rank 0 has -:\n-"), (
        f"RANK-1: expected a difference on rank 2, got {messages!r}"
    )


def test_a_difference_is_reported_as_the_lines_that_differ() -> None:
    messages = tree_differences(
        [digest_of(it).text for it in (snapshot_of(10), first(snapshot_of(10), locks={"full": 0}))]
    )
    lines = [line.partition("#")[0] + line.partition(":")[2] for line in messages.splitlines()[1:]]
    expected = [
        "-node 0..2 [1 2]  on device full:2; locked full:1; hits 2",
        "+node 0..2 [1 2]  on device full:2; hits 2",
    ]
    assert lines == expected, f"expected {expected}, got {lines}"


def test_equal_trees_report_nothing() -> None:
    assert tree_differences([digest_of(snapshot_of(slot)).text for slot in (1, 9, 30)]) == "", (
        "RANK-1: three equal trees"
    )
