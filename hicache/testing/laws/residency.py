"""Which data a node may lack: FULL by depth, the others by rank on one node and tier, and nothing on a free leaf."""

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
    """MATCH-7: a node without data on any tier is not in the tree."""
    holds_any = np.logical_or.reduce([table.held_anywhere(component) for component in table.device.held])
    table.require("MATCH-7", holds_any, "a node with data", _tombstone)


def check_depth(table: NodeTable, config: CacheConfig) -> None:
    """EVICT-5: the parent of a node with FULL data on a tier has FULL data there too.

    With write_back a node is copied to the host when it leaves the device; its parent may still be only on the device.
    """
    is_chain = config.host is not None and config.host.write_policy is not WritePolicy.WRITE_BACK
    for columns in table.tiers if is_chain else [table.device]:
        held = columns.held[Component.FULL]
        parent_holds = table.of_parent(held.astype(np.int64), 1) > 0
        expected = f"FULL data on the parent of FULL data{columns.where}"
        table.require("EVICT-5", ~held | parent_holds, expected, _tombstone)


def check_ranks(table: NodeTable) -> None:
    """EVICT-5: a component's data needs FULL data on the same node and tier; without a host, that of every one before.

    With a host tier two loads of one node may load its components in any order.
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
    """EVICT-6: on an unlocked leaf every component has data on some tier."""
    free_leaf = table.is_leaf & (table.device.locks[Component.FULL] == 0)
    if table.host is not None:
        free_leaf &= ~np.logical_or.reduce([locks > 0 for locks in table.host.locks.values()])
    for component in table.device.held:
        held = table.held_anywhere(component)
        table.require("EVICT-6", ~free_leaf | held, f"{component} data on an unlocked leaf", _tombstone)


def _tombstone(_: int) -> str:
    return "a tombstone"
