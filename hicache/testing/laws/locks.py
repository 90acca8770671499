"""Lock counts: never below zero, FULL's the highest on a node and falling with depth, data under each."""

from __future__ import annotations

from hicache.testing.laws.table import NodeTable
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import Component


def check_not_negative(table: NodeTable) -> None:
    """LOCK-6: no count is below zero."""
    for component, locks in table.locks.items():
        table.require("LOCK-6", locks >= 0, f"a {component} lock count of at least 0", locks.__getitem__)


def check_full_highest(table: NodeTable) -> None:
    """LOCK-8: FULL's count is at least each other component's."""
    full = table.locks[Component.FULL]
    for component, locks in table.locks.items():
        expected = f"a {component} lock count of at most FULL's"
        table.require("LOCK-8", full >= locks, expected, lambda row: table.snapshot.nodes[row].locks)


def check_path(table: NodeTable) -> None:
    """LOCK-1: a FULL lock holds the whole path, so a node counts at least what its children count together."""
    full = table.locks[Component.FULL]
    below = table.of_children(full)
    table.require(
        "LOCK-1", full >= below, "at least the FULL locks of its children", lambda row: f"{full[row]} < {below[row]}"
    )


def check_receipts(snapshot: Snapshot, receipts: int) -> None:
    """LOCK-2: no more locks than receipts that are not released, so that none is left when the last one is."""
    locks = sum(node.locks[Component.FULL] for node in snapshot.nodes if node.parent < 0)
    if locks > receipts:
        raise violation("LOCK-2", "FULL locks below the root", f"at most {receipts} as are not released", locks)


def check_data_under_locks(table: NodeTable) -> None:
    """LOCK-5: what a component locks, it holds."""
    for component, locks in table.locks.items():
        holds = (locks <= 0) | table.held[component]
        table.require("LOCK-5", holds, f"{component} data under a {component} lock", lambda _: "a tombstone")
