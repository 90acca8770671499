"""An adapter as it was written before `recencies`, `keep_at` and `tokens_refused` were there: it never changes.

What it imports of the kit, what it declares and what it returns are those of that time. The cache below it refreshes
all states on a path, as a cache does whose adapter declares no recency.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from hicache import open_cache
from hicache.components.component_tree import LockReceipt
from hicache.config import CacheConfig, Recency
from hicache.request import Request, RequestManager
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.tree.node import Node
from hicache.types import Component, EvictResult, InsertResult, Key, MatchResult, Sizes, Slots, Tokens


class FrozenAdapter(CacheAdapter):
    """The device tier of the reference, by verbs and by requests."""

    interface = 2
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.VERBS, Capability.REQUESTS, Capability.RESET, Capability.PAGED, Capability.NAMESPACES),
            *(Capability.SWA, Capability.MAMBA, Capability.BRANCHING, Capability.BYTES, Capability.SNAPSHOT),
            *(Capability.SIZES, Capability.HITS, Capability.REFUSALS),
        }
    )

    def __init__(self, config: CacheConfig) -> None:
        self.cache = open_cache(
            capacity_tokens=config.capacity_tokens,
            page_size=config.page_size,
            components=config.components,
            sliding_window_size=config.sliding_window_size,
            mamba_chunk_size=config.mamba_chunk_size,
            model=config.model,
            layout=config.layout,
            recency=Recency.PATH,
        )
        self.requests = RequestManager(self.cache)
        self.units = {
            name.value: 1 if name is Component.MAMBA else config.page_size
            for name in Component
            if name in config.components
        }

    def allocate(self, tokens: int) -> Slots | None:
        return self.cache.allocate(tokens)

    def free(self, slots: Slots) -> None:
        self.cache.free(slots)

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        found = self.cache.match(self.cache.key(key.tokens, key.namespace), chunked)
        return MatchResult(
            device_indices=found.device_indices,
            device_anchor=found.device_anchor,
            best_match=found.best_match,
            host_hit_length=found.host_hit_length,
            component_host_hit_lengths=found.component_host_hit_lengths,
            branching_seqlen=found.branching_seqlen,
        )

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        return self.cache.insert(self.cache.key(key.tokens, key.namespace), slots, state, priority)

    def lock(self, handle: Node) -> LockReceipt:
        return self.cache.lock(handle)

    def unlock(self, receipt: LockReceipt) -> None:
        self.cache.unlock(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        return self.cache.evict(component, tokens)

    def reset(self) -> None:
        self.cache.reset()

    def close(self) -> None:
        self.cache.close()

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

    def layers(self, pool: str) -> int:
        buffers = self.cache.pools.buffers
        return buffers[pool].spec.layers if pool in buffers else 0

    def slot_bytes(self, pool: str) -> int:
        return self.cache.pools.buffers[pool].spec.slot_bytes

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self.cache.pools.buffers[pool].write(slots, layer, data)

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        return self.cache.pools.buffers[pool].read(slots, layer)

    def lookup(self, key: Key) -> int:
        return len(self.match(key, chunked=True).device_indices)

    def admit(self, key: Key) -> Admission | None:
        request = self.requests.admit(key.tokens, key.namespace)
        return None if request is None else _admission(request)

    def resume(self, request: Request) -> Admission | None:
        return _admission(request) if self.requests.resume(request) else None

    def extend(self, request: Request, tokens: Tokens) -> Slots | None:
        return request.table.copy() if self.requests.extend(request, tokens) else None

    def checkpoint(self, request: Request, computed_tokens: int) -> Slots:
        self.requests.checkpoint(request, computed_tokens)
        return request.table.copy()

    def finish(self, request: Request) -> None:
        self.requests.finish(request)

    def abort(self, request: Request) -> None:
        self.requests.abort(request)

    def sizes(self) -> Mapping[str, Sizes]:
        return self.cache.sizes()

    def snapshot(self) -> Snapshot:
        nodes = list(self.cache.tree.radix.nodes())
        numbers = {id(node): number for number, node in enumerate(nodes)}
        below: dict[int, int] = {}
        for node in reversed(nodes):
            locks = node.device[0].lock_ref
            below[id(node)] = below.get(id(node), 0) + locks
            below[id(node.parent)] = below.get(id(node.parent), 0) + below[id(node)] - bool(locks)
        views = [self._node(node, numbers.get(id(node.parent), -1), below[id(node)]) for node in nodes]
        allocators = self.cache.pools.allocators
        pools = {
            name: PoolView(allocators[name].capacity_pages * unit, _slots(allocators[name].free_set(), unit))
            for name, unit in self.units.items()
        }
        return Snapshot(tuple(views), pools, None, None)

    def _node(self, node: Node, parent: int, receipts: int) -> NodeView:
        page = self.cache.config.page_size
        values = zip(self.units.items(), node.device, strict=True)
        return NodeView(
            parent=parent,
            namespace=node.namespace,
            segment=node.key,
            start=node.start * page,
            end=node.end * page,
            slots={name: None if data.value is None else _slots(data.value, unit) for (name, unit), data in values},
            locks=dict(zip(self.units, [receipts, *[data.lock_ref for data in node.device[1:]]], strict=True)),
            hits=node.hit_count,
        )


def _admission(request: Request) -> Admission:
    cached = request.shared_tokens + request.loading_tokens
    return Admission(request, request.table.copy(), cached, request.state, not request.is_ready)


def _slots(pages: Slots, unit: int) -> Slots:
    return (pages[:, None] * unit + np.arange(unit)).reshape(-1)
