"""The laws of the tree alone: its structure, which data a node may lack, its locks, and who may be evicted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from hicache.config import CacheConfig, WritePolicy
from hicache.testing.driving.patterns import element_bytes
from hicache.testing.laws.table import NodeTable, Numbers, TierColumns, flags, numbers
from hicache.testing.snapshot import Snapshot
from hicache.testing.violation import violation
from hicache.types import SHARED, Component


def check_parents(table: NodeTable) -> None:
    """INS-8: a node follows its parent in the list, starts where the parent ends, and has its namespace (KEY-2)."""
    nodes = table.snapshot.nodes
    listed = (table.parent >= -1) & (table.parent < np.arange(len(nodes)))
    table.require("INS-8", listed, "a parent that is listed before", lambda row: nodes[row].parent)
    begins = table.of_parent(table.end, 0)
    table.require(
        "INS-8", table.start == begins, "a start where the parent ends", lambda row: f"its end at {begins[row]}"
    )
    number_of = {namespace: number for number, namespace in enumerate({node.namespace: None for node in nodes})}
    namespaces = numbers([number_of[node.namespace] for node in nodes])
    same = ~table.has_parent | (namespaces == table.of_parent(namespaces, -1))
    table.require("KEY-2", same, "the namespace of its parent", lambda row: table.place(nodes[row].parent))


def check_lengths(table: NodeTable, config: CacheConfig) -> None:
    """KEY-1: a node is a positive number of whole pages; KEY-3: its segment has as many elements as it reports."""
    length = table.end - table.start
    whole = (length > 0) & (length % config.page_size == 0)
    table.require("KEY-1", whole, f"a positive multiple of page_size {config.page_size}", length.__getitem__)
    segments = numbers([len(node.segment) for node in table.snapshot.nodes])
    size = element_bytes(config.bigram)
    table.require("KEY-3", segments == length * size, f"a segment of {size} bytes per element", segments.__getitem__)


def check_pairs(table: NodeTable, config: CacheConfig) -> None:
    """KEY-3: with bigram keys each pair starts with the token that ended the pair before, also from node to node."""
    if not config.bigram:
        return
    nodes = table.snapshot.nodes
    pairs = [np.frombuffer(node.segment, dtype="<i4").reshape(-1, 2) for node in nodes]
    within = flags([np.array_equal(own[1:, 0], own[:-1, 1]) for own in pairs])
    table.require("KEY-3", within, "pairs that overlap", lambda row: pairs[row].tolist())
    across = flags(
        [node.parent < 0 or own[0, 0] == pairs[node.parent][-1, 1] for node, own in zip(nodes, pairs, strict=True)]
    )
    table.require("KEY-3", across, "a pair that overlaps the parent's last", lambda row: pairs[row][0].tolist())


def check_siblings(table: NodeTable, config: CacheConfig) -> None:
    """MATCH-8: no two children of a node start with the same page; below the root, within one namespace."""
    page_bytes = config.page_size * element_bytes(config.bigram)
    seen: dict[tuple[object, ...], int] = {}
    for row, node in enumerate(table.snapshot.nodes):
        namespace = SHARED if node.parent >= 0 else node.namespace
        twin = seen.setdefault((node.parent, namespace, node.segment[:page_bytes]), row)
        if twin != row:
            raise violation("MATCH-8", table.place(row), "a first page unlike its siblings'", f"that of node {twin}")


def check_hits(table: NodeTable) -> None:
    """INS-8: a request that matched a child matched its parent, so a node's hits are at least its children's sum."""
    counted = [node.hits for node in table.snapshot.nodes]
    if None in counted:
        return
    hits = numbers([count for count in counted if count is not None])
    below = table.of_children(hits)
    table.require("INS-8", hits >= below, "the hits of its children", lambda row: f"{hits[row]} < {below[row]}")


def check_slot_counts(table: NodeTable, config: CacheConfig) -> None:
    """POOL-1: on each tier a node has one slot per element of FULL and SWA, and one MAMBA state; or none at all."""
    length = table.end - table.start
    for columns in table.tiers:
        for component in config.components:
            wanted = np.ones_like(length) if component == Component.MAMBA else length
            held = [view.slots[component] for view in columns.views]
            counts = numbers([-1 if slots is None else len(slots) for slots in held])
            fits = (counts == -1) | (counts == wanted)
            expected = f"{component} slots for the whole node{columns.where}"
            table.require("POOL-1", fits, expected, counts.__getitem__)


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
            table.require("HOST-3", (pins >= 0) & (pins <= locks), expected, _with_locks(pins, locks))


def _with_locks(pins: Numbers, locks: Numbers) -> Callable[[int], str]:
    return lambda row: f"{pins[row]} with a lock count of {locks[row]}"


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


def host_candidates(snapshot: Snapshot, component: str) -> list[int]:
    """EVICT-8: the rows of nodes whose host data of a component can be evicted; none while transfers are in flight.

    FULL is evicted together with all host data of the node, if no lock protects it and no child has host data. SWA and
    MAMBA are evicted if neither they nor a component after them on the same node is locked on the host.
    """
    host = snapshot.host
    if host is None or host.transfers:
        return []
    lower = [name for name in RANKS[RANKS.index(component) :] if name in host.pools]
    backed = {
        snapshot.nodes[row].parent for row, view in enumerate(host.nodes) if view.slots[Component.FULL] is not None
    }
    return [
        row
        for row, view in enumerate(host.nodes)
        if view.slots[component] is not None
        and not any(view.locks[name] for name in lower)
        and (component != Component.FULL or (row not in backed and _may_leave_the_host(snapshot, row)))
    ]


def _may_leave_the_host(snapshot: Snapshot, row: int) -> bool:
    node = snapshot.nodes[row]
    return node.slots[Component.FULL] is not None or not any(node.locks.values())
