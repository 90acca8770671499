"""The whole reference cache as a Snapshot: nodes, pools, transfers, and who locks what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hicache.cache import UnifiedRadixCache
from hicache.components.locks import LockReceipt
from hicache.pools.slots import PageAllocator
from hicache.testing.snapshot import (
    FetchView,
    HostNodeView,
    HostView,
    NodeView,
    PoolView,
    Snapshot,
    StorageView,
    TransferView,
)
from hicache.tiers.host_tier import HostTier
from hicache.tiers.storage_tier import StorageTier
from hicache.tree.node import Node
from hicache.types import Component, Slots

Counts = dict[int, list[int]]
"""Locks per component of some nodes, by the nodes' identity."""


class ReferenceView:
    """Shows one cache."""

    def __init__(self, cache: UnifiedRadixCache) -> None:
        self._cache = cache
        self._names = [name.value for name in Component if name in cache.config.components]
        self._places = np.arange(cache.config.page_size)

    def snapshot(self) -> Snapshot:
        """The cache at this moment, in values of their own."""
        nodes = list(self._cache.tree.nodes())
        numbers = {id(node): number for number, node in enumerate(nodes)}
        receipts = _receipts_through(nodes)
        views = tuple([self._node(node, numbers, receipts[number]) for number, node in enumerate(nodes)])
        pools = {name: self._pool(name, self._cache.pools.allocators[name]) for name in self._names}
        host = None if self._cache.host is None else self._host(self._cache.host, nodes)
        storage = None if self._cache.storage is None else self._storage(self._cache.storage, nodes)
        return Snapshot(views, pools, host, storage)

    def slots(self, component: str, pages: Slots | None) -> Slots | None:
        """The slots of some pages of a component."""
        if pages is None or component == Component.MAMBA or len(self._places) == 1:
            return None if pages is None else pages.copy()
        return (pages[:, None] * len(self._places) + self._places).reshape(-1)

    def _node(self, node: Node, numbers: Mapping[int, int], receipts: int) -> NodeView:
        page, count = self._cache.config.page_size, len(self._names)
        return NodeView(
            parent=numbers.get(id(node.parent), -1),
            namespace=node.namespace,
            segment=node.key,
            start=node.start * page,
            end=node.end * page,
            slots=self._by_name(node.values[:count]),
            locks=dict(zip(self._names, [receipts, *node.locks[1:count]], strict=True)),
            hits=node.hits,
        )

    def _host(self, host: HostTier, nodes: Sequence[Node]) -> HostView:
        count = len(self._names)
        pins = [self._pins(nodes, tier) for tier in range(2)]
        views = tuple(
            [
                HostNodeView(
                    slots=self._by_name(node.values[count:]),
                    locks=dict(zip(self._names, node.locks[count:], strict=True)),
                    pins=dict(zip(self._names, pins[0][id(node)], strict=True)),
                    host_pins=dict(zip(self._names, pins[1][id(node)], strict=True)),
                )
                for node in nodes
            ]
        )
        pools = {name: self._pool(name, host.bank.allocators[name]) for name in self._names}
        return HostView(views, pools, tuple(self._transfers(host)), self._kept(host))

    def _storage(self, storage: StorageTier, nodes: Sequence[Node]) -> StorageView:
        persisted = [
            frozenset(name for index, name in enumerate(self._names) if node.persisted & 1 << index) for node in nodes
        ]
        fetches = [
            FetchView({name: self._existing(name, pages) for name, pages in fetch.pages.items()})
            for fetch in storage.fetches.under_way
            if fetch.pages
        ]
        return StorageView(tuple(persisted), tuple(fetches))

    def _by_name(self, values: Sequence[Slots | None]) -> dict[str, Slots | None]:
        return {name: self.slots(name, pages) for name, pages in zip(self._names, values, strict=True)}

    def _pool(self, component: str, allocator: PageAllocator) -> PoolView:
        unit = 1 if component == Component.MAMBA else self._cache.config.page_size
        return PoolView(allocator.capacity_pages * unit, self._existing(component, allocator.free_set()))

    def _existing(self, component: str, pages: Slots) -> Slots:
        slots = self.slots(component, pages)
        assert slots is not None, f"pages of {component} are an array"
        return slots

    def _transfers(self, host: HostTier) -> Iterable[TransferView]:
        for operation in host.controller.under_way():
            moves = operation.moves.items()
            yield TransferView(
                kind=operation.kind,
                device={name: self._existing(name, move.device) for name, move in moves},
                host={name: self._existing(name, move.host) for name, move in moves},
            )

    def _kept(self, host: HostTier) -> dict[str, Slots]:
        pages = host.loads.kept()
        kept = {Component.FULL.value: self._existing(Component.FULL, pages)}
        if Component.SWA in self._names:
            partners = self._cache.pools.partners(pages)
            kept[Component.SWA.value] = self._existing(Component.SWA, partners[partners != 0])
        return kept

    def _pins(self, nodes: Sequence[Node], tier: int) -> Counts:
        counts: Counts = {id(node): [0] * len(self._names) for node in nodes}
        for receipt in _with_keepers(self._cache.locks.pins):
            if receipt.tier == tier:
                self._count(receipt, counts)
        return counts

    def _count(self, receipt: LockReceipt, counts: Counts) -> None:
        """Count what a receipt locks, component by component, as its release would find it."""
        for index, (name, mark) in enumerate(zip(self._names, receipt.marks, strict=True)):
            node = receipt.node
            if name == Component.MAMBA:
                counts[id(node)][index] += mark
                continue
            while node.parent is not None and node.end > mark:
                counts[id(node)][index] += 1
                node = node.parent


def _with_keepers(receipts: Iterable[LockReceipt]) -> Iterable[LockReceipt]:
    for receipt in receipts:
        yield receipt
        if receipt.keeper is not None:
            yield receipt.keeper


def _receipts_through(nodes: Sequence[Node]) -> list[int]:
    """Receipts that lock each node's FULL data: its own (its count less its locked children) and its children's."""
    totals = {id(node): 0 for node in nodes}
    for node in reversed(nodes):
        locked_children = sum(1 for child in node.children.values() if child.locks[0])
        totals[id(node)] += node.locks[0] - locked_children
        if node.parent is not None and id(node.parent) in totals:
            totals[id(node.parent)] += totals[id(node)]
    return [totals[id(node)] for node in nodes]
