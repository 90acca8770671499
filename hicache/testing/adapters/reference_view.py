"""The whole reference cache as a Snapshot: nodes, pools, transfers, and who locks what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hicache.cache import HostTier, StorageTier, UnifiedRadixCache
from hicache.components.component_tree import LockReceipt
from hicache.pools.allocator import PageAllocator
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
from hicache.tree.node import FULL, Node
from hicache.types import Component, Slots, Tier

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
        nodes = list(self._cache.tree.radix.nodes())
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
        page = self._cache.config.page_size
        return NodeView(
            parent=numbers.get(id(node.parent), -1),
            namespace=node.namespace,
            segment=node.key,
            start=node.start * page,
            end=node.end * page,
            slots=self._by_name([data.value for data in node.device]),
            locks=dict(zip(self._names, [receipts, *[data.lock_ref for data in node.device[1:]]], strict=True)),
            hits=node.hit_count,
        )

    def _host(self, host: HostTier, nodes: Sequence[Node]) -> HostView:
        pins = {tier: self._pins(nodes, tier) for tier in (Tier.DEVICE, Tier.HOST)}
        views = tuple(
            [
                HostNodeView(
                    slots=self._by_name([data.value for data in node.host]),
                    locks=dict(zip(self._names, [data.lock_ref for data in node.host], strict=True)),
                    pins=dict(zip(self._names, pins[Tier.DEVICE][id(node)], strict=True)),
                    host_pins=dict(zip(self._names, pins[Tier.HOST][id(node)], strict=True)),
                )
                for node in nodes
            ]
        )
        pools = {name: self._pool(name, host.pools.allocators[name]) for name in self._names}
        return HostView(views, pools, tuple(self._transfers(host)), self._orphaned(host))

    def _storage(self, storage: StorageTier, nodes: Sequence[Node]) -> StorageView:
        stored = [
            frozenset(name for name, is_stored in zip(self._names, node.stored, strict=True) if is_stored)
            for node in nodes
        ]
        prefetches = [
            FetchView({name: self._existing(name, pages) for name, pages in operation.pages.items()})
            for operation in storage.prefetches.under_way
            if operation.pages
        ]
        return StorageView(tuple(stored), tuple(prefetches))

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
        for transfer in host.controller.under_way():
            moves = transfer.moves.items()
            yield TransferView(
                kind=transfer.kind,
                device={name: self._existing(name, move.device) for name, move in moves},
                host={name: self._existing(name, move.host) for name, move in moves},
            )

    def _orphaned(self, host: HostTier) -> dict[str, Slots]:
        pages = host.load_backs.orphaned_pages()
        orphaned = {Component.FULL.value: self._existing(Component.FULL, pages)}
        if Component.SWA in self._names:
            partners = self._cache.pools.partners(pages)
            orphaned[Component.SWA.value] = self._existing(Component.SWA, partners[partners != 0])
        return orphaned

    def _pins(self, nodes: Sequence[Node], tier: Tier) -> Counts:
        counts: Counts = {id(node): [0] * len(self._names) for node in nodes}
        for receipt in _with_keepers(self._cache.tree.locks.pins):
            if receipt.tier is tier:
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
        locked_children = sum(1 for child in node.children.values() if child.device[FULL].lock_ref)
        totals[id(node)] += node.device[FULL].lock_ref - locked_children
        if node.parent is not None and id(node.parent) in totals:
            totals[id(node.parent)] += totals[id(node)]
    return [totals[id(node)] for node in nodes]
