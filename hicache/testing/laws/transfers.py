"""Transfers in flight: the slots that they read stay in the tree and locked, and nothing is left when they end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hicache.testing.laws.conservation import OWNER_NAMES, TREE, Ownership, all_slots
from hicache.testing.laws.table import Flags, NodeTable, TierColumns, flags
from hicache.testing.snapshot import HostView, TransferView
from hicache.testing.violation import violation
from hicache.types import Component, Slots, Tier, TransferKind

SOURCE = {TransferKind.BACKUP: Tier.DEVICE, TransferKind.LOAD: Tier.HOST}
"""The tier that a transfer reads from."""


def check_transfers(table: NodeTable, host: HostView, owners: Ownership) -> None:
    """FLOW-1: the slots that a transfer reads belong to the tree, and are locked there until it is applied."""
    for number, transfer in enumerate(host.transfers):
        _require_pairs(number, transfer)
        for component, slots in _sources(transfer).items():
            known = owners[SOURCE[transfer.kind]][component]
            owner = known[np.minimum(slots, len(known) - 1)]
            if (owner != TREE).any():
                first = int((owner != TREE).argmax())
                raise violation(
                    "FLOW-1",
                    f"source of transfer {number}, {transfer.kind.value}, {component} slot {slots[first]}",
                    OWNER_NAMES[TREE],
                    OWNER_NAMES[owner[first]],
                )
    for columns in table.tiers:
        _require_pins(table, columns, [one for one in host.transfers if SOURCE[one.kind] is columns.tier])


def check_idle(table: NodeTable, host: HostView, *, is_persisting: bool) -> None:
    """FLOW-7: with nothing in flight and no load that a caller waits for, no node is pinned and no slot is kept.

    `is_persisting`: storage may be reading from the host.
    """
    for columns in [table.device] if is_persisting else table.tiers:
        for component, pins in columns.pins.items():
            expected = f"no pins of {component}{columns.where} while nothing is in flight"
            table.require("FLOW-7", pins == 0, expected, pins.__getitem__)
    kept = {component: slots.tolist() for component, slots in host.kept.items() if len(slots)}
    if kept:
        raise violation("FLOW-7", "slots kept for loads that have ended", "none, as no caller waits for a load", kept)


def _sources(transfer: TransferView) -> dict[str, Slots]:
    return dict(transfer.device if transfer.kind is TransferKind.BACKUP else transfer.host)


def _require_pairs(number: int, transfer: TransferView) -> None:
    device = {component: len(slots) for component, slots in transfer.device.items()}
    host = {component: len(slots) for component, slots in transfer.host.items()}
    if device != host or not any(device.values()):
        raise violation("FLOW-1", f"transfer {number}", f"as many slots on the host as on the device: {device}", host)


def _require_pins(table: NodeTable, columns: TierColumns, transfers: Sequence[TransferView]) -> None:
    """HOST-3: a node is locked on the device while it is backed up, and the source of a load is locked on the host."""
    if not transfers:
        return
    for component in columns.held:
        read = all_slots([slots for one in transfers if (slots := _sources(one).get(component)) is not None])
        is_read = np.zeros(1 + int(read.max(initial=0)), dtype=np.bool_)
        is_read[read] = True
        reads = flags([_reads(is_read, view.slots[component]) for view in columns.views])
        locking = component if columns.tier is Tier.HOST else Component.FULL.value
        expected = f"a pin of {locking}{columns.where} while a transfer reads its {component} slots"
        table.require("HOST-3", ~reads | (columns.pins[locking] > 0), expected, lambda _: "none")


def _reads(is_read: Flags, slots: Slots | None) -> bool:
    return slots is not None and bool(is_read[slots[slots < len(is_read)]].any())
