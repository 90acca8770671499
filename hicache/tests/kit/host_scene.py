"""The snapshot of a small cache with a host tier, made by hand, with a backup and a load in flight. It is valid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from hicache.config import WritePolicy
from hicache.errors import InvariantError
from hicache.testing.laws import check_laws
from hicache.testing.snapshot import HostNodeView, NodeView, PoolView, Snapshot, TransferView
from hicache.tests.kit.snapshots import FULL, MAMBA, SWA, below, host_tier, node, pool, slots, snapshot, tiny_config
from hicache.types import NO_SLOTS, Slots, TransferKind

CONFIG = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=6, write_policy=WritePolicy.WRITE_THROUGH)
HELD: Mapping[str, Slots] = dict.fromkeys((FULL, SWA, MAMBA), NO_SLOTS)

# A and B are on the device, and B's state is being backed up. C, below A, is only on the host, and is being loaded.
A = node((1, 2), {FULL: slots(2, 3), SWA: None, MAMBA: None}, locks={FULL: 2})
B = node(
    (3, 4),
    {FULL: slots(4, 5), SWA: slots(2, 3), MAMBA: slots(1)},
    parent=0,
    start=2,
    locks={FULL: 1, SWA: 1, MAMBA: 1},
)
C = node((5, 6), {FULL: None, SWA: None, MAMBA: None}, parent=0, start=2)

A_BELOW = below({FULL: slots(2, 3), SWA: slots(2, 3), MAMBA: None}, pins={FULL: 2})
B_BELOW = below({FULL: slots(4, 5), SWA: None, MAMBA: None}, pins={FULL: 1, SWA: 1, MAMBA: 1})
C_BELOW = below(
    {FULL: slots(6, 7), SWA: slots(6, 7), MAMBA: slots(1)},
    locks={FULL: 2, SWA: 1, MAMBA: 1},
    host_pins={FULL: 1, SWA: 1, MAMBA: 1},
)

BACKUP = TransferView(TransferKind.BACKUP, {MAMBA: slots(1)}, {MAMBA: slots(2)})
LOAD = TransferView(
    TransferKind.LOAD,
    {FULL: slots(6, 7), SWA: slots(4, 5), MAMBA: slots(2)},
    {FULL: slots(6, 7), SWA: slots(6, 7), MAMBA: slots(1)},
)

POOLS = {FULL: pool(12, 8, 9, 10, 11), SWA: pool(12, 6, 7, 8, 9, 10, 11, 12, 13), MAMBA: pool(6, 3, 4, 5, 6)}
HOST_POOLS = {FULL: pool(12, 8, 9, 10, 11, 12, 13), SWA: pool(12, 4, 5, *range(8, 14)), MAMBA: pool(6, 3, 4, 5, 6)}
KEPT = {FULL: slots(12, 13)}


def scene(
    *,
    nodes: Sequence[NodeView] = (A, B, C),
    below: Sequence[HostNodeView] = (A_BELOW, B_BELOW, C_BELOW),
    transfers: Sequence[TransferView] = (BACKUP, LOAD),
    pools: Mapping[str, PoolView] = POOLS,
    host_pools: Mapping[str, PoolView] = HOST_POOLS,
    kept: Mapping[str, Slots] = KEPT,
) -> Snapshot:
    """The snapshot, or one with some other parts."""
    return snapshot(nodes, pools, host_tier(below, host_pools, *transfers, kept=kept))


def change(original: Any, **fields: Any) -> Any:
    """A view with other fields; mappings are merged with its own."""
    for name in fields.keys() & {"slots", "locks", "pins", "host_pins", "device", "host"}:
        fields[name] = {**getattr(original, name), **fields[name]}
    return replace(original, **fields)


FREE = {"locks": dict.fromkeys((FULL, SWA, MAMBA), 0), "host_pins": dict.fromkeys((FULL, SWA, MAMBA), 0)}
NO_PINS = {"pins": dict.fromkeys((FULL, SWA, MAMBA), 0)}

STILL: dict[str, Any] = {
    "below": (change(A_BELOW, **NO_PINS), change(B_BELOW, **NO_PINS), change(C_BELOW, host_pins=FREE["host_pins"])),
    "transfers": (),
    "pools": {FULL: pool(12, *range(6, 14)), SWA: pool(12, *range(4, 14)), MAMBA: pool(6, *range(2, 7))},
    "host_pools": HOST_POOLS | {MAMBA: pool(6, *range(2, 7))},
    "kept": {},
}
"""The same with nothing in flight. C is locked on the host by a receipt."""


def fails(clause: str, words: str, shown: Snapshot, write_policy: WritePolicy = WritePolicy.WRITE_THROUGH) -> None:
    config = tiny_config(FULL, SWA, MAMBA, page_size=2, pages=6, write_policy=write_policy)
    with pytest.raises(InvariantError, match=rf"^{clause}: .*{re.escape(words)}"):
        check_laws(shown, config, HELD, is_awaited=False)
