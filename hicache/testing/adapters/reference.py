"""ReferenceAdapter: the reference implementation under the suites. It translates, and decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from hicache.components.locks import LockReceipt
from hicache.config import CacheConfig
from hicache.extra_config import read_extra_config
from hicache.parallel.group import Group
from hicache.request import Request, RequestLife
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.adapters.reference_ranks import ReferenceRankVerbs
from hicache.testing.adapters.reference_view import ReferenceView
from hicache.testing.snapshot import Snapshot
from hicache.tree.invariants import check_invariants
from hicache.tree.node import Node
from hicache.types import Event, EvictResult, InsertResult, Key, MatchResult, Pool, Sizes, Slots, Tokens

LONGEST_PAUSE_S = 0.001
"""Of a copy by a thread, where tests are to meet it at every moment."""


class ReferenceAdapter(ReferenceRankVerbs, CacheAdapter):
    """The reference cache, which can do everything that three tiers ask for, on one rank and on several."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        super().__init__(config, groups)
        self._life = RequestLife(self.cache)

    @classmethod
    def delayed(cls) -> type[CacheAdapter]:
        # Another process finds it by its module and name, without the delays.
        named = {"__module__": cls.__module__, "longest_pause_s": LONGEST_PAUSE_S}
        delayed: type[CacheAdapter] = type(cls.__name__, (cls,), named)
        return delayed

    @classmethod
    def extra_config(cls, source: str) -> Mapping[str, Any]:
        return asdict(read_extra_config(source))

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
        return None if request is None else _admission(request)

    def resume(self, request: Request) -> Admission | None:
        return _admission(request) if self._life.resume(request) else None

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
        return ReferenceView(self.cache).snapshot()

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


def _admission(request: Request) -> Admission:
    cached = request.shared_tokens + request.loading_tokens
    return Admission(request, request.table.copy(), cached, request.state, loading=not request.is_ready)
