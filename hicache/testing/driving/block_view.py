"""BlockView: a cache of blocks or chunks, checked after a verb against every law, and against its earlier state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clauses_not_checked
from hicache.testing.driving.running import RunningRequest
from hicache.testing.driving.table_contents import TableContents
from hicache.testing.driving.view import View
from hicache.testing.geometry import Publish, geometry_of
from hicache.testing.laws.blocks import (
    check_block_sizes,
    check_blocks,
    check_evicted,
    check_growth,
    check_shared,
    check_table,
)
from hicache.testing.laws.chunks import check_chunks, check_evicted_chunks, check_host_sizes
from hicache.testing.models.blocks import BlockModel
from hicache.testing.snapshot import BlockSnapshot, OffloadView, TransferView
from hicache.testing.violation import violation
from hicache.types import Component, Key, Slots


class BlockView(View):
    """A cache whose requests have a table for each component. Checks one adapter as far as its capabilities allow.

    `operations`: returns how many verbs were called so far. What was evicted is checked if it is at most one more.
    `checks_computed`: `compute` and `schedule` are called for all that requests compute, so that REQ-11 is checked.
    """

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, operations: Callable[[], int], *, checks_computed: bool
    ) -> None:
        super().__init__(adapter, config)
        self._checks_computed = checks_computed
        self.shows_blocks = self.is_shown
        self._geometry = geometry_of(config)
        self._contents = TableContents(adapter, config)
        self._model = BlockModel(config)
        self._operations = operations
        self._before: tuple[int, BlockSnapshot] | None = None
        self._refused: int | None = None

    def check(self, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        if self.is_shown:
            self._check_snapshot(self._adapter.block_snapshot(), running)
        for request in running if Capability.TABLES in self._adapter.capabilities else ():
            if not request.is_loading:
                self._contents.verify(request)
        self._adapter.sanity_check()

    def refused(self) -> None:
        self._refused = self._operations() + 1

    # What a cache of blocks shows.

    def cached_length(self, key: Key) -> int:
        return self._shown_model().expected_hit(key, len(key.tokens)) if self.is_shown else 0

    def expected_admission(self, key: Key, *, is_alone: bool) -> int | None:
        if not self.is_shown:
            return None
        hit = self._shown_model().expected_admission(key)
        tokens = len(key.tokens) + self._adapter.reserved_tokens(len(key.tokens))
        needed = self._geometry.blocks_of(tokens, hit=hit, window=self._config.sliding_window_size or 0)
        # A request that runs alone does without a hit beside which it does not fit.
        is_beside = self._geometry.fits(needed, self._geometry.in_blocks(self._config.capacity_tokens))
        return hit if is_beside or not is_alone else 0

    def transfers(self) -> Sequence[TransferView]:
        offload = self._adapter.block_snapshot().offload if self.is_shown else None
        return () if offload is None else offload.transfers

    def residency(self) -> object:
        offload = self._adapter.block_snapshot().offload if self.is_shown else None
        chunks = () if offload is None else offload.chunks
        return {
            (one.namespace, one.prefix, None if one.slots is None else one.slots.tobytes(), one.is_stored)
            for one in chunks
        }

    def overwrite_blank(self) -> None:
        size = self._geometry.slots(Component.FULL)
        pools = self._adapter.block_snapshot().pools if self.is_shown else ()
        blank = np.array([number for pool in pools for number in pool.blank], dtype=np.int64)
        self._contents.overwrite((blank[:, None] * size + np.arange(size, dtype=np.int64)).reshape(-1))

    def require_nothing_cached(self) -> None:
        blocks = self._adapter.block_snapshot().blocks if self.is_shown else ()
        if blocks:
            raise violation("EVICT-9", "reset", "nothing cached", f"{len(blocks)} blocks")

    # What requests compute and read: each component has a table of its own.

    def set_table(self, running: RunningRequest, table: Slots) -> None:
        running.table = table
        before, running.tables = running.tables, dict(self._adapter.tables(running.request))
        check_table(running.tables, self._config, running.slot_tokens)
        if self._geometry.duplicates and before:
            check_growth(before, running.tables)
        if not np.array_equal(table, running.tables[Component.FULL]):
            raise violation("REQ-4", "table of a request", running.tables[Component.FULL].tolist(), table.tolist())

    def compute(self, running: RunningRequest, tokens: int) -> None:
        self._contents.compute(running, tokens)
        self._model.compute(running.upto(tokens))

    def schedule(self, running: RunningRequest) -> None:
        if self._geometry.publish is Publish.SCHEDULED:
            self._contents.compute_kv(running, len(running.key.tokens))
            self._model.compute(running.key)

    def verify(self, running: RunningRequest) -> None:
        self._contents.verify(running)

    def verify_hit(self, running: RunningRequest) -> None:
        self._contents.verify(running)

    # The checks of a snapshot.

    def _shown_model(self) -> BlockModel:
        self._model.adopt(self._adapter.block_snapshot())
        return self._model

    def _check_snapshot(self, snapshot: BlockSnapshot, running: Collection[RunningRequest]) -> None:
        departures = clauses_not_checked(self._adapter.profile, self._adapter.departures)
        tables = [request.tables for request in running]
        check_blocks(snapshot, self._config, tables, departures)
        if self._geometry.shares_uncomputed:
            check_shared([(request.key, request.tables) for request in running], self._config)
        if Capability.SIZES in self._adapter.capabilities and "LOCK-4" not in departures:
            check_block_sizes(snapshot, self._config, self._adapter.sizes(), tables)
        now = self._operations()
        is_refused = self._refused == now
        is_checked = "EVICT-13" not in departures if is_refused else "EVICT-1" not in departures
        if self._before is not None and now - self._before[0] <= 1 and is_checked:
            clause, merges = "EVICT-13" if is_refused else "EVICT-1", self._geometry.merges_early
            check_evicted(self._before[1], snapshot, clause, merges=merges)
        if snapshot.offload is not None:
            self._check_offload(snapshot.offload, departures)
        self._before = (now, snapshot)
        # What storage has may have been computed before the cache was opened.
        if self._checks_computed and "REQ-11" not in departures and self._config.storage is None:
            self._model.adopt(snapshot)
            self._model.require_computed(self.verb)
        self._contents.verify_blocks(snapshot)

    def _check_offload(self, view: OffloadView, departures: frozenset[str]) -> None:
        check_chunks(view, self._config, departures)
        if Capability.SIZES in self._adapter.capabilities and "LOCK-4" not in departures:
            check_host_sizes(view, self._adapter.host_sizes())
        before = None if self._before is None else self._before[1].offload
        if self._before is not None and before is not None and self._operations() - self._before[0] <= 1:
            check_evicted_chunks(before, view, self._config, departures)
        self._contents.verify_chunks(view)
