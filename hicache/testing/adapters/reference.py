"""ReferenceAdapter: the reference implementation under the suites. It translates, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import ClassVar

import numpy as np

from hicache.cache import LockReceipt, UnifiedRadixCache
from hicache.config import CacheConfig
from hicache.request import Request, RequestLife
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.tree.invariants import check_invariants
from hicache.tree.node import Node
from hicache.types import Component, Event, EvictResult, InsertResult, Key, MatchResult, Pool, Sizes, Slots, Tokens

LATER = frozenset({Capability.HOST, Capability.STORAGE, Capability.STEPPED, Capability.RANKS})


class ReferenceAdapter(CacheAdapter):
    """The reference cache, which can do everything that one tier on one rank asks for."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - LATER

    def __init__(self, config: CacheConfig) -> None:
        self.cache = UnifiedRadixCache(config)
        self._life = RequestLife(self.cache)

    def allocate(self, tokens: int) -> Slots | None:
        return self.cache.allocate(tokens)

    def free(self, slots: Slots) -> None:
        self.cache.free(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        return self.cache.match(self.cache.key(key.tokens, key.namespace), chunked)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        # The reference sees what is shared, and what lost its SWA data, in the slots themselves.
        return self.cache.insert(self.cache.key(key.tokens, key.namespace), slots, state, priority)

    def lock(self, handle: Node) -> LockReceipt:
        return self.cache.lock(handle)

    def unlock(self, receipt: LockReceipt) -> None:
        self.cache.unlock(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        return self.cache.evict(component, tokens)

    def step(self) -> None:
        self.cache.step()

    def reset(self) -> None:
        self.cache.reset()

    def partners(self, slots: Slots) -> Slots:
        page = self.cache.config.page_size
        partners = self.cache.pools.partners(slots // page)
        return np.where(partners == 0, 0, partners * page + slots % page)

    def release_window(self, slots: Slots) -> None:
        self.cache.release_window(slots)

    def allocate_state(self) -> int | None:
        return self.cache.allocate_state()

    def free_state(self, slot: int) -> None:
        self.cache.free_state(slot)

    def fork_state(self, handle: Node) -> int | None:
        return self.cache.fork_state(handle)

    def layers(self, pool: Pool) -> int:
        buffers = self.cache.pools.buffers
        return buffers[pool].spec.layers if pool in buffers else 0

    def slot_bytes(self, pool: Pool) -> int:
        return self.cache.pools.buffers[pool].spec.slot_bytes

    def write(self, pool: Pool, slots: Slots, layer: int, data: PageBytes) -> None:
        self.cache.pools.buffers[pool].write(slots, layer, data)

    def read(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        return self.cache.pools.buffers[pool].read(slots, layer)

    def admit(self, key: Key) -> Admission | None:
        request = self._life.admit(key.tokens, key.namespace)
        if request is None:
            return None
        return Admission(request, request.table.copy(), request.shared_tokens, request.state, loading=False)

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return request.table.copy() if self._life.extend(request, tokens) else None

    def checkpoint(self, request: Request, computed_tokens: int) -> Slots:
        self._life.checkpoint(request, computed_tokens)
        return request.table.copy()

    def finish(self, request: Request) -> None:
        self._life.finish(request)

    def abort(self, request: Request) -> None:
        self._life.abort(request)

    def snapshot(self) -> Snapshot:
        nodes = list(self.cache.tree.nodes())
        numbers = {id(node): number for number, node in enumerate(nodes)}
        receipts, hits = _receipts_through(nodes), _hits_through(nodes)
        views = tuple(self._view(node, numbers, receipts[number], hits[number]) for number, node in enumerate(nodes))
        pools = {name: self._pool(name) for name in self.cache.config.components}
        return Snapshot(views, pools, host=None)

    def sizes(self) -> Mapping[str, Sizes]:
        return self.cache.sizes()

    def events(self) -> Sequence[Event]:
        return self.cache.events.peek()

    def page_hashes(self, key: Key) -> Sequence[str]:
        return self.cache.page_hashes(self.cache.key(key.tokens, key.namespace))

    def counters(self) -> Mapping[str, int]:
        return asdict(self.cache.counters)

    def sanity_check(self) -> None:
        check_invariants(self.cache.tree.root)

    def _view(self, node: Node, numbers: Mapping[int, int], receipts: int, hits: int) -> NodeView:
        names = [name for name in Component if name in self.cache.config.components]
        page = self.cache.config.page_size
        locks = {name.value: count for name, count in zip(names, [receipts, *node.locks[1:]], strict=True)}
        return NodeView(
            parent=numbers.get(id(node.parent), -1),
            namespace=node.namespace,
            segment=node.key,
            start=node.start * page,
            end=node.end * page,
            slots={name.value: self._slots(name, pages) for name, pages in zip(names, node.values, strict=True)},
            locks=locks,
            hits=hits,
        )

    def _slots(self, component: str, pages: Slots | None) -> Slots | None:
        if pages is None or component == Component.MAMBA:
            return None if pages is None else pages.copy()
        page = self.cache.config.page_size
        return (pages[:, None] * page + np.arange(page)).reshape(-1)

    def _pool(self, component: str) -> PoolView:
        unit = 1 if component == Component.MAMBA else self.cache.config.page_size
        allocator = self.cache.pools.allocators[component]
        free = self._slots(component, allocator.free_set())
        assert free is not None, f"the free set of {component} is an array"
        return PoolView(allocator.capacity_pages * unit, free)


def _receipts_through(nodes: Sequence[Node]) -> list[int]:
    """Receipts that lock each node's FULL data: its own (its count less its locked children) and its children's."""
    totals = {id(node): 0 for node in nodes}
    for node in reversed(nodes):
        locked_children = sum(1 for child in node.children.values() if child.locks[0])
        totals[id(node)] += node.locks[0] - locked_children
        if node.parent is not None and id(node.parent) in totals:
            totals[id(node.parent)] += totals[id(node)]
    return [totals[id(node)] for node in nodes]


def _hits_through(nodes: Sequence[Node]) -> list[int]:
    totals = {id(node): node.hits for node in nodes}
    for node in reversed(nodes):
        if node.parent is not None and id(node.parent) in totals:
            totals[id(node.parent)] += totals[id(node)]
    return [totals[id(node)] for node in nodes]
