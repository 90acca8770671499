"""The laws that every cache must satisfy, checked on a snapshot alone."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cache, partial

from hicache.config import CacheConfig
from hicache.testing.laws import slots, tiers, tree
from hicache.testing.laws.accepted import Accepted
from hicache.testing.laws.slots import Ownership
from hicache.testing.laws.table import NodeTable
from hicache.testing.snapshot import HostNodeView, NodeView, Snapshot
from hicache.testing.violation import ViolationError, violation
from hicache.types import Slots

CHECKED_AFTER_EACH_VERB = frozenset(
    {
        *("EVICT-1", "EVICT-5", "EVICT-6", "FETCH-8", "FETCH-9", "FLOW-1", "FLOW-7", "FLOW-8", "FLOW-9"),
        *("FLOW-13", "HOST-3"),
        *("INS-1", "INS-8"),
        *("KEY-1", "KEY-2", "KEY-3", "LOCK-1", "LOCK-2", "LOCK-4", "LOCK-5", "LOCK-6", "LOCK-8"),
        *("MATCH-3", "MATCH-7", "MATCH-8", "POOL-1", "POOL-2", "POOL-4", "POOL-5", "REQ-1", "REQ-3", "REQ-4"),
    }
)
"""The clauses that the driver checks after each verb, in every test."""


def check_laws(
    snapshot: Snapshot,
    config: CacheConfig,
    held: Mapping[str, Slots],
    *,
    is_awaited: bool = True,
    departures: frozenset[str] = frozenset(),
) -> Ownership:
    """Raise InvariantError unless every law holds; `held`: the slots that the caller holds, by component.

    `is_awaited`: a caller may wait for a load or a prefetch. If none does, no node may be pinned once nothing is in
    flight, except for the pages that storage is writing.
    `departures`: clauses whose laws are not checked.
    Returns the owner of each slot, by tier, component and slot number.
    """
    _check_pools(snapshot, config)
    is_idle = not is_awaited and snapshot.host is not None and not snapshot.host.transfers
    structure = _structure(snapshot, config, is_idle, departures)
    is_accepted = structure in _ACCEPTED
    table = cache(lambda: NodeTable.of(snapshot, config.components))
    if not is_accepted:
        check_tree(table(), config, departures)
    owners = slots.check_owners(snapshot, config, held)
    if snapshot.host is not None and snapshot.host.transfers:
        tiers.check_transfers(table(), snapshot.host, owners)
    if not is_accepted:
        if is_idle and snapshot.host is not None:
            tiers.check_idle(table(), snapshot.host, is_persisting=snapshot.storage is not None)
        if snapshot.storage is not None:
            tiers.check_marks(table(), snapshot.storage)
        _ACCEPTED.add(structure, None)
    return owners


_ACCEPTED: Accepted[None] = Accepted()


def _structure(snapshot: Snapshot, config: CacheConfig, is_idle: bool, departures: frozenset[str]) -> Hashable:
    """All that the laws read, except for slot numbers: most verbs change no more than these, or nothing."""
    host, storage, names = snapshot.host, snapshot.storage, config.components
    nodes = [
        (node.parent, node.namespace, node.segment, node.start, node.end, node.hits, *_counts(node, names))
        for node in snapshot.nodes
    ]
    below = () if host is None else [(*_counts(view, names), *_pins(view, names)) for view in host.nodes]
    policy = None if config.host is None else config.host.write_policy
    rules = (names, config.page_size, config.bigram, policy, is_idle, departures)
    kept = () if host is None else [len(slots) for slots in host.kept.values()]
    persisted = None if storage is None else storage.persisted
    return rules, tuple(nodes), tuple(below), tuple(kept), storage is None, persisted


def _counts(view: NodeView | HostNodeView, names: Sequence[str]) -> Iterator[int]:
    for name in names:
        slots = view.slots[name]
        yield -1 if slots is None else len(slots)
        yield view.locks[name]


def _pins(view: HostNodeView, names: Sequence[str]) -> Iterator[int]:
    for name in names:
        yield view.pins[name]
        yield view.host_pins[name]


def check_tree(table: NodeTable, config: CacheConfig, departures: frozenset[str] = frozenset()) -> None:
    """Check the laws of the tree alone. `departures`: clauses whose laws are not checked."""
    for check in _tree_laws(table, config):
        try:
            check()
        except ViolationError as error:
            if error.clause not in departures:
                raise


def _tree_laws(table: NodeTable, config: CacheConfig) -> Iterator[Callable[[], None]]:
    yield partial(tree.check_parents, table)
    yield partial(tree.check_lengths, table, config)
    yield partial(tree.check_pairs, table, config)
    yield partial(tree.check_siblings, table, config)
    yield partial(tree.check_slot_counts, table, config)
    yield partial(tree.check_hits, table)
    yield partial(tree.check_presence, table)
    yield partial(tree.check_depth, table, config)
    yield partial(tree.check_ranks, table)
    yield partial(tree.check_leaves, table)
    yield partial(tree.check_not_negative, table)
    yield partial(tree.check_pins, table)
    yield partial(tree.check_full_highest, table)
    yield partial(tree.check_path, table)
    yield partial(tree.check_data_under_locks, table)


def _check_pools(snapshot: Snapshot, config: CacheConfig) -> None:
    host = snapshot.host
    if (host is not None) != (config.host is not None):
        raise violation("POOL-1", "snapshot", f"a host tier: {config.host is not None}", host is not None)
    for where, pools in [("", snapshot.pools), *([(" on the host", host.pools)] if host is not None else [])]:
        if set(pools) != set(config.components):
            raise violation("POOL-1", f"snapshot{where}", f"the pools of {sorted(config.components)}", sorted(pools))
    if host is not None and len(host.nodes) != len(snapshot.nodes):
        raise violation("POOL-1", "snapshot on the host", f"{len(snapshot.nodes)} nodes", len(host.nodes))
    if (snapshot.storage is not None) != (config.storage is not None):
        raise violation("POOL-1", "snapshot", f"storage: {config.storage is not None}", snapshot.storage is not None)
