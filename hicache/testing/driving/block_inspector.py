"""BlockInspector: checks a cache of blocks after a verb against every law, and against its earlier state."""

from __future__ import annotations

from collections.abc import Callable, Collection

from hicache.config import CacheConfig
from hicache.testing.adapter import CacheAdapter, Capability
from hicache.testing.contract import clauses_not_checked
from hicache.testing.driving.running import RunningRequest
from hicache.testing.driving.table_contents import TableContents
from hicache.testing.laws.blocks import check_block_sizes, check_blocks, check_evicted
from hicache.testing.laws.chunks import check_chunks, check_evicted_chunks, check_host_sizes
from hicache.testing.snapshot import BlockSnapshot, OffloadView


class BlockInspector:
    """Checks one adapter with the profile blocks or offload, as far as its capabilities allow.

    `operations`: returns how many verbs were called so far. What was evicted is checked if it is at most one more.
    """

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, contents: TableContents, operations: Callable[[], int]
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._contents = contents
        self._operations = operations
        self._before: tuple[int, BlockSnapshot] | None = None

    def check(self, running: Collection[RunningRequest], *, is_awaited: bool) -> None:
        """Raise InvariantError unless blocks, references, sizes, tables and bytes are right. `is_awaited`: not used."""
        if Capability.SNAPSHOT in self._adapter.capabilities:
            self._check_snapshot(self._adapter.block_snapshot(), running)
        for request in running if Capability.TABLES in self._adapter.capabilities else ():
            if not request.is_loading:
                self._contents.verify(request)
        self._adapter.sanity_check()

    def _check_snapshot(self, snapshot: BlockSnapshot, running: Collection[RunningRequest]) -> None:
        departures = clauses_not_checked(self._adapter.profile, self._adapter.departures)
        tables = [request.tables for request in running]
        check_blocks(snapshot, self._config, tables, departures)
        if Capability.SIZES in self._adapter.capabilities and "LOCK-4" not in departures:
            check_block_sizes(snapshot, self._config, self._adapter.sizes(), tables)
        now = self._operations()
        if self._before is not None and now - self._before[0] <= 1 and "EVICT-1" not in departures:
            check_evicted(self._before[1], snapshot)
        if snapshot.offload is not None:
            self._check_offload(snapshot.offload, departures)
        self._before = (now, snapshot)
        self._contents.verify_blocks(snapshot)

    def _check_offload(self, view: OffloadView, departures: frozenset[str]) -> None:
        check_chunks(view, self._config, departures)
        if Capability.SIZES in self._adapter.capabilities and "LOCK-4" not in departures:
            check_host_sizes(view, self._adapter.host_sizes())
        before = None if self._before is None else self._before[1].offload
        if self._before is not None and before is not None and self._operations() - self._before[0] <= 1:
            check_evicted_chunks(before, view, self._config, departures)
        self._contents.verify_chunks(view)
