"""Eviction orders: what each policy sorts nodes by, smallest first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hicache.config import EvictionPolicy
from hicache.tree.node import Node

FULL = 0
"""FULL's place among the components: it is always the first."""

SLRU_PROTECTED_HITS = 2
"""Hits from which SLRU counts a node as proven."""

Order = Callable[[Node], Any]
"""A sort key, compared only with others of the same policy."""


def _lru(node: Node) -> int:
    return node.touched[FULL]


def _lfu(node: Node) -> tuple[int, int]:
    return node.hits, node.touched[FULL]


def _fifo(node: Node) -> int:
    return node.created


def _filo(node: Node) -> int:
    return -node.created


def _mru(node: Node) -> int:
    return -node.touched[FULL]


def _priority(node: Node) -> tuple[int, int]:
    return node.priority, node.touched[FULL]


def _slru(node: Node) -> tuple[bool, int]:
    return node.hits >= SLRU_PROTECTED_HITS, node.touched[FULL]


ORDERS: dict[EvictionPolicy, Order] = {
    EvictionPolicy.LRU: _lru,
    EvictionPolicy.LFU: _lfu,
    EvictionPolicy.FIFO: _fifo,
    EvictionPolicy.FILO: _filo,
    EvictionPolicy.MRU: _mru,
    EvictionPolicy.PRIORITY: _priority,
    EvictionPolicy.SLRU: _slru,
}


def recency_of(component: int) -> Order:
    """Least recently used first; of nodes used together the one nearer the root first."""

    def order(node: Node) -> tuple[int, int]:
        return node.touched[component], node.end

    return order


def falls_when_touched(policy: EvictionPolicy) -> bool:
    """Whether use brings a node nearer to eviction, so that its place in a queue must be renewed at once."""
    return policy is EvictionPolicy.MRU
