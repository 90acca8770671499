"""What may be gone while what stays: by depth for FULL, by rank on one node, and nothing at a free leaf."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hicache.testing.laws.table import NodeTable, flags
from hicache.types import Component

RANKS = tuple(component.value for component in Component)
"""Components from the highest rank to the lowest."""


def check_presence(table: NodeTable) -> None:
    """MATCH-7: without a host tier, a node that holds nothing has no place in the tree."""
    holds_any = flags([any(slots is not None for slots in node.slots.values()) for node in table.snapshot.nodes])
    table.require("MATCH-7", holds_any, "a node that holds something", _tombstone)


def check_depth(table: NodeTable) -> None:
    """EVICT-5: where a node holds FULL data, so does its parent."""
    held = table.held[Component.FULL]
    parent_holds = table.of_parent(held.astype(np.int64), 1) > 0
    table.require("EVICT-5", ~held | parent_holds, "FULL data on the parent of FULL data", _tombstone)


def check_ranks(table: NodeTable) -> None:
    """EVICT-5: a component's data needs the data of every higher rank on the same node."""
    ranked = [component for component in RANKS if component in table.held]
    for higher, lower in pairwise(ranked):
        ordered = ~table.held[lower] | table.held[higher]
        table.require("EVICT-5", ordered, f"{higher} data where there is {lower} data", _tombstone)


def check_leaves(table: NodeTable) -> None:
    """EVICT-6: an unlocked leaf is a tombstone for no component."""
    free_leaf = table.is_leaf & (table.locks[Component.FULL] == 0)
    for component, held in table.held.items():
        table.require("EVICT-6", ~free_leaf | held, f"{component} data on an unlocked leaf", _tombstone)


def _tombstone(_: int) -> str:
    return "a tombstone"
