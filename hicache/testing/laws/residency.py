"""What may be gone while what stays: by depth for FULL, by rank on one node and tier, and nothing at a free leaf."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.laws.table import NodeTable, TierColumns
from hicache.types import Component

RANKS = tuple(component.value for component in Component)
"""Components from the highest rank to the lowest."""


def check_presence(table: NodeTable) -> None:
    """MATCH-7: a node that holds nothing on any tier has no place in the tree."""
    holds_any = np.logical_or.reduce([table.held_anywhere(component) for component in table.device.held])
    table.require("MATCH-7", holds_any, "a node that holds something", _tombstone)


def check_depth(table: NodeTable, config: CacheConfig) -> None:
    """EVICT-5: where a node holds FULL data, so does its parent on that tier.

    With write_back a node is copied when it leaves the device, and its parent may be there still.
    """
    is_chain = config.host is not None and config.host.write_policy is not WritePolicy.WRITE_BACK
    for columns in table.tiers if is_chain else [table.device]:
        held = columns.held[Component.FULL]
        parent_holds = table.of_parent(held.astype(np.int64), 1) > 0
        expected = f"FULL data on the parent of FULL data{columns.where}"
        table.require("EVICT-5", ~held | parent_holds, expected, _tombstone)


def check_ranks(table: NodeTable) -> None:
    """EVICT-5: a component's data needs FULL data on the same node and tier; on one tier, that of every higher rank.

    With a host tier two loads of one node may bring components in any order.
    """
    ranked = [component for component in RANKS if component in table.device.held]
    pairs = list(pairwise(ranked)) if table.host is None else [(ranked[0], lower) for lower in ranked[1:]]
    for columns in table.tiers:
        _check_pairs(table, columns, pairs)


def _check_pairs(table: NodeTable, columns: TierColumns, pairs: Iterable[tuple[str, str]]) -> None:
    for higher, lower in pairs:
        ordered = ~columns.held[lower] | columns.held[higher]
        expected = f"{higher} data where there is {lower} data{columns.where}"
        table.require("EVICT-5", ordered, expected, _tombstone)


def check_leaves(table: NodeTable) -> None:
    """EVICT-6: an unlocked leaf lacks no component on every tier."""
    free_leaf = table.is_leaf & (table.device.locks[Component.FULL] == 0)
    if table.host is not None:
        free_leaf &= ~np.logical_or.reduce([locks > 0 for locks in table.host.locks.values()])
    for component in table.device.held:
        held = table.held_anywhere(component)
        table.require("EVICT-6", ~free_leaf | held, f"{component} data on an unlocked leaf", _tombstone)


def _tombstone(_: int) -> str:
    return "a tombstone"
