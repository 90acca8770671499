"""Lock counts: not negative, highest for FULL, not increasing with depth, and with data under each lock."""

from __future__ import annotations

from hicache.testing.laws.table import NodeTable
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import Component


def check_not_negative(table: NodeTable) -> None:
    """LOCK-6: no lock count is below zero."""
    for columns in table.tiers:
        for component, locks in columns.locks.items():
            expected = f"a {component} lock count of at least 0{columns.where}"
            table.require("LOCK-6", locks >= 0, expected, locks.__getitem__)


def check_pins(table: NodeTable) -> None:
    """HOST-3: the locks that the cache itself holds for its transfers are part of all locks."""
    if table.host is None:
        return
    for columns in table.tiers:
        for component, locks in columns.locks.items():
            pins = columns.pins[component]
            expected = f"0 or more pins of {component}{columns.where}, and no more than its {component} locks"
            table.require("HOST-3", (pins >= 0) & (pins <= locks), expected, pins.__getitem__)


def check_full_highest(table: NodeTable) -> None:
    """LOCK-8: FULL's count is at least each other component's. A lock on the host locks FULL of one node alone."""
    full = table.device.locks[Component.FULL]
    for component, locks in table.device.locks.items():
        expected = f"a {component} lock count of at most FULL's"
        table.require("LOCK-8", full >= locks, expected, lambda row: table.snapshot.nodes[row].locks)


def check_path(table: NodeTable) -> None:
    """LOCK-1: a FULL lock covers the whole path, so a node's count is at least the sum of its children's counts."""
    full = table.device.locks[Component.FULL]
    below = table.of_children(full)
    table.require(
        "LOCK-1", full >= below, "at least the FULL locks of its children", lambda row: f"{full[row]} < {below[row]}"
    )


def check_data_under_locks(table: NodeTable) -> None:
    """LOCK-5: a component that is locked on a tier has data there."""
    for columns in table.tiers:
        for component, locks in columns.locks.items():
            holds = (locks <= 0) | columns.held[component]
            expected = f"{component} data under a {component} lock{columns.where}"
            table.require("LOCK-5", holds, expected, lambda _: "a tombstone")


def check_receipts(snapshot: Snapshot, receipts: int) -> None:
    """LOCK-2: there are no more locks than outstanding receipts, so that none is left when the last one is released."""
    rows = [row for row, node in enumerate(snapshot.nodes) if node.parent < 0]
    locks = sum(snapshot.nodes[row].locks[Component.FULL] for row in rows)
    pins = 0 if snapshot.host is None else sum(snapshot.host.nodes[row].pins[Component.FULL] for row in rows)
    if locks - pins > receipts:
        raise violation("LOCK-2", "FULL locks below the root", f"at most {receipts}, the receipts", locks - pins)
