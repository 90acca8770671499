"""The shape of a radix tree: parents, lengths, first pages, and the number of slots of each node."""

from __future__ import annotations

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.laws.table import NodeTable, flags, numbers
from hicache.testing.patterns import element_bytes
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
