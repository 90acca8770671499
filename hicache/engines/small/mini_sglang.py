"""MiniSglang: the adapter of mini-sglang's CacheManager and radix cache, from the source that `--engine-source` names.

It acts around the manager as the scheduler there does: it matches, locks, and asks `available_size` before and after
the lock; it allocates, caches each computed chunk with `cache_req`, and gives what a request has beyond that back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from hicache.config import CacheConfig, EvictionPolicy
from hicache.engines.interface import checkouts
from hicache.engines.small.engine_calls import EngineCalls
from hicache.engines.small.mini_sglang_import import prepare_mini_sglang
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.testing.adapter import Admission, CacheAdapter, Capability, PageBytes
from hicache.testing.snapshot import NodeView, PoolView, Snapshot
from hicache.types import (
    NO_SLOTS,
    SHARED,
    Component,
    EvictResult,
    Handle,
    InsertResult,
    Key,
    MatchResult,
    Pool,
    Sizes,
    Slots,
    Tokens,
)

__getattr__ = checkouts("minisgl")

FULL = Component.FULL.value
LAYERS, SLOT_BYTES = 2, 8
ROWS = 64
"""The rows of the page table: the requests that can run at once."""


class MiniSglang(CacheAdapter):
    """FULL, one namespace, LRU, by both doors.

    The engine uses page 0 for data. So slot n of the engine is slot n + page_size here.
    """

    interface = 2
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {
            *(Capability.VERBS, Capability.REQUESTS, Capability.PAGED),
            *(Capability.BYTES, Capability.SNAPSHOT, Capability.SIZES),
        }
    )
    # An aborted request caches what it has computed.
    departures = frozenset({"REQ-6"})

    def __init__(self, config: CacheConfig) -> None:
        if config.components != (FULL,) or config.sidecars or config.bigram or config.policy is not EvictionPolicy.LRU:
            raise ConfigurationError(f"{config.name}: expected FULL alone, LRU, and keys of tokens")
        self._engine = prepare_mini_sglang()
        self.calls = EngineCalls()
        self._page, self._capacity = config.page_size, config.capacity_tokens[FULL]
        # One engine runs in a process there, and its page size is global.
        self._engine.core._GLOBAL_CTX = self._engine.core.Context(self._page)  # noqa: SLF001
        self._table = torch.zeros((ROWS, self._capacity + self._page), dtype=torch.int32)
        self._rows = list(range(ROWS))
        pages = self._capacity // self._page
        manager = self._engine.cache_manager(pages, self._page, self._table, "radix")
        self.calls.note(f"set_global_ctx(Context(page_size={self._page}))")
        self.calls.note(f"manager = CacheManager({pages}, {self._page}, page_table, 'radix')")
        self.manager = self.calls.watch(manager, "manager")
        self.prefix_cache = self.calls.watch(manager.prefix_cache, "manager.prefix_cache")
        self._pool = np.zeros((LAYERS, self._capacity + self._page, SLOT_BYTES), dtype=np.uint8)

    # Verbs.

    def allocate(self, tokens: int) -> Slots | None:
        if tokens > self.manager.available_size:
            return None
        return self._slots(self.manager._page_to_token(self.manager._allocate(tokens // self._page)))  # noqa: SLF001

    def free(self, slots: Slots) -> None:
        self.manager._free(self._indices(slots))  # noqa: SLF001

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        handle = self._found(key.tokens)
        return MatchResult(self._prefix(handle), handle, handle, 0, {}, None)

    def insert(
        self, key: Key, slots: Slots, *, shared: int, window_start: int, state: int | None, priority: int
    ) -> InsertResult:
        # The first half of `cache_req`, which returns neither the length nor the handle.
        indices = self._indices(slots)
        known, handle = self.prefix_cache.insert_prefix(_tensor(key.tokens[: len(slots)]), indices)
        self.manager._free(indices[shared:known])  # noqa: SLF001
        return InsertResult(known, handle.cached_len, handle, state_adopted=False)

    def lock(self, handle: Handle) -> Handle:
        self.manager.lock(handle)
        return handle

    def unlock(self, receipt: Handle) -> None:
        self.manager.unlock(receipt)

    def evict(self, component: str, tokens: int) -> EvictResult:
        # The second half of `_allocate`. The engine never asks for more than is evictable.
        before = sum(1 for _ in self._nodes())
        evicted = self.prefix_cache.evict(min(tokens, self.prefix_cache.size_info.evictable_size))
        self.manager.free_slots = torch.cat([self.manager.free_slots, evicted[:: self._page]])
        return EvictResult({FULL: len(evicted)}, before - sum(1 for _ in self._nodes()), refused=0)

    # Requests.

    def lookup(self, key: Key) -> int:
        return int(self._found(key.tokens).cached_len)

    def admit(self, key: Key) -> Admission | None:
        handle = self._found(key.tokens[:-1])
        missing = len(key.tokens) - handle.cached_len
        if not self._rows or missing > self.manager.available_size:
            return None
        self.manager.lock(handle)
        if missing > self.manager.available_size:
            self.manager.unlock(handle)
            return None
        request = self._open(key, handle)
        self.manager.allocate_paged([request])
        return Admission(request, self._table_of(request), handle.cached_len, None, loading=False)

    def extend(self, request: Any, tokens: Tokens) -> Slots | None:
        end = request.device_len + len(tokens)
        missing = -(-end // self._page) * self._page - len(self._table_of(request))
        if missing > self.manager.available_size:
            return None
        for token in tokens.tolist():
            request.append_host(torch.tensor([token], dtype=torch.int32))
            request.complete_one()
            self.calls.note(
                f"{self.calls.told(request)}.append_host([{token}]); {self.calls.told(request)}.complete_one()"
            )
            self.manager.allocate_paged([request])
        return self._table_of(request)

    def checkpoint(self, request: Any, computed_tokens: int) -> Slots:
        self._compute(request, computed_tokens)
        self.manager.cache_req(request, finished=False)
        row, free = request.table_idx, self.manager.free_slots.tolist()
        self.calls.note(f"# page_table[{row}, :{computed_tokens}]: {self._table[row, :computed_tokens].tolist()}")
        self.calls.note(f"# manager.free_slots: {free}")
        return self._table_of(request)

    def finish(self, request: Any) -> None:
        self._compute(request, len(request.input_ids))
        self._close(request)

    def abort(self, request: Any) -> None:
        # The engine computes what it allocates in the same step. Here a request may end before that.
        start = -(-request.cached_len // self._page) * self._page
        self.manager._free(self._table[request.table_idx, start : len(self._table_of(request))])  # noqa: SLF001
        self._close(request)

    # The model runner.

    def layers(self, pool: str) -> int:
        return LAYERS if pool == Pool.KV else 0

    def slot_bytes(self, pool: str) -> int:
        return SLOT_BYTES

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        self._pool[layer, slots] = data

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        data: PageBytes = self._pool[layer, slots]
        return data

    # Read-only.

    def snapshot(self) -> Snapshot:
        nodes = list(self._nodes())
        rows = {id(node): row for row, node in enumerate(nodes)}
        views: list[NodeView] = []
        for node in nodes:
            parent = rows.get(id(node.parent), -1)
            start = views[parent].end if parent >= 0 else 0
            views.append(self._view(node, parent, start))
        pages = self.manager.free_slots.numpy().astype(np.int64) + self._page
        free = (pages[:, None] + np.arange(self._page)).reshape(-1)
        return Snapshot(tuple(views), {FULL: PoolView(self._capacity, free)}, host=None, storage=None)

    def sizes(self) -> Mapping[str, Sizes]:
        info = self.prefix_cache.size_info
        return {FULL: Sizes(info.evictable_size, info.protected_size, len(self.manager.free_slots) * self._page)}

    # Translation.

    def _view(self, node: Any, parent: int, start: int) -> NodeView:
        return NodeView(
            parent=parent,
            namespace=SHARED,
            segment=node._key.numpy().astype("<i4").tobytes(),  # noqa: SLF001
            start=start,
            end=start + node.length,
            slots={FULL: self._slots(node.value)},
            locks={FULL: node.ref_count},
            hits=None,
        )

    def _nodes(self) -> Iterator[Any]:
        """The nodes below the root, a parent before its children."""
        waiting = list(self.prefix_cache.root_node.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children.values()

    def _found(self, tokens: Tokens) -> Any:
        return self.prefix_cache.match_prefix(_tensor(tokens)).cuda_handle

    def _prefix(self, handle: Any) -> Slots:
        """The slots up to the end of a match. Of the root there are none, and the engine does not ask."""
        return self._slots(handle.get_matched_indices()) if handle.cached_len else NO_SLOTS

    def _open(self, key: Key, handle: Any) -> Any:
        """A request on the prefix of a match, whose slots are in its row of the page table."""
        row, cached, tokens = self._rows.pop(), handle.cached_len, key.tokens.tolist()
        indices = self._indices(self._prefix(handle))
        self._table[row, :cached] = indices
        request = self._engine.req(
            input_ids=_tensor(key.tokens),
            table_idx=row,
            cached_len=cached,
            output_len=self._capacity - len(tokens),
            uid=row,
            sampling_params=self._engine.sampling_params(),
            cache_handle=handle,
        )
        if cached:
            self.calls.note(f"page_table[{row}, :{cached}] = {indices.tolist()}")
        name = self.calls.told(self.calls.name(request, "req"))
        self.calls.note(f"{name} = Req({tokens}, table_idx={row}, cached_len={cached}, cache_handle=handle, ...)")
        return request

    def _compute(self, request: Any, tokens: int) -> None:
        request.cached_len = tokens
        self.calls.note(f"{self.calls.told(request)}.cached_len = {tokens}")

    def _close(self, request: Any) -> None:
        self._rows.append(request.table_idx)
        self.manager.cache_req(request, finished=True)

    def _table_of(self, request: Any) -> Slots:
        end = -(-request.device_len // self._page) * self._page
        return self._slots(self._table[request.table_idx, :end])

    def _slots(self, indices: torch.Tensor) -> Slots:
        found: Slots = indices.numpy().astype(np.int64) + self._page
        return found

    def _indices(self, slots: Slots) -> torch.Tensor:
        return torch.from_numpy((slots - self._page).astype(np.int32))


def _tensor(tokens: Tokens) -> torch.Tensor:
    return torch.from_numpy(np.array(tokens, dtype=np.int32))
