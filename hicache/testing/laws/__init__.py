"""The laws of a cache as anyone can check them: over a snapshot, without a look inside."""

from __future__ import annotations

from collections.abc import Mapping

from hicache.config import CacheConfig
from hicache.testing.laws import conservation, locks, residency, structure
from hicache.testing.laws.conservation import Owners
from hicache.testing.laws.table import NodeTable
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import Slots


def check_laws(snapshot: Snapshot, config: CacheConfig, held: Mapping[str, Slots]) -> dict[str, Owners]:
    """Raise InvariantError unless every law holds; `held`: the slots that the caller holds, by component.

    Returns who owns each slot, by component and slot number.
    """
    if set(snapshot.pools) != set(config.components):
        raise violation("POOL-1", "snapshot", f"the pools of {sorted(config.components)}", sorted(snapshot.pools))
    check_tree(NodeTable.of(snapshot, config.components), config)
    owners = conservation.check_owners(snapshot, config, held)
    conservation.check_pages(snapshot, config, owners)
    return owners


def check_tree(table: NodeTable, config: CacheConfig) -> None:
    """The laws that speak of the tree alone."""
    structure.check_parents(table)
    structure.check_lengths(table, config)
    structure.check_pairs(table, config)
    structure.check_siblings(table, config)
    structure.check_slot_counts(table, config)
    structure.check_hits(table)
    residency.check_presence(table)
    residency.check_depth(table)
    residency.check_ranks(table)
    residency.check_leaves(table)
    locks.check_not_negative(table)
    locks.check_full_highest(table)
    locks.check_path(table)
    locks.check_data_under_locks(table)
