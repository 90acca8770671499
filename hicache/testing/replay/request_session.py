"""RequestSession: serves the prompts of a trace from a cache that is driven by requests, on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from hicache.config import CacheConfig
from hicache.testing.adapter import Admission, CacheAdapter, Capability
from hicache.testing.driving.block_view import BlockView
from hicache.testing.driving.prompts import aligned_count
from hicache.testing.driving.running import RunningRequest
from hicache.testing.driving.table_contents import TableContents
from hicache.testing.replay.configuration import ReplaySettings
from hicache.testing.replay.latency import Stopwatch
from hicache.testing.replay.session import Served
from hicache.testing.violation import violation
from hicache.types import Key, Tier


class RequestSession:
    """One cache and its running requests, at most `settings.running` at the same time, in the order of admission.

    `prefetcher`: there is none. `verbs`: the number of verbs called so far.
    """

    def __init__(
        self, adapter: CacheAdapter, config: CacheConfig, settings: ReplaySettings, stopwatch: Stopwatch
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._max_running = settings.running
        self.prefetcher = None
        self._call = stopwatch.time
        self.contents = TableContents(adapter, config)
        self.running: deque[RunningRequest] = deque()
        self.verbs = 0

    def serve(self, key: Key, *, checked: bool) -> Served:
        """Admit a request, compute what it did not hit, and cache that; unless it is too large.

        The oldest requests finish when too many run, or when too few slots are free. With `checked` the bytes of the
        hit are read back, and then those of the whole prompt; InvariantError when they differ (REQ-3).
        """
        if len(self.running) >= self._max_running:
            self._finish_oldest()
        admission = self._admit(key)
        if admission is None:
            return Served({}, None, refused_tokens=None, fits=False)
        running = self._started(key, admission)
        self.running.append(running)
        if checked:
            self.contents.verify(running)
        self.contents.compute(running, len(key.tokens))
        self.verbs += 1
        running.table = self._call(self._adapter.checkpoint, running.request, len(key.tokens))
        running.tables = self._adapter.tables(running.request)
        if checked:
            self.contents.verify(running)
        return Served({Tier.DEVICE.value: admission.cached_tokens}, None, refused_tokens=None, fits=True)

    def finish_all(self) -> None:
        """Finish every running request."""
        while self.running:
            self._finish_oldest()

    def _admit(self, key: Key) -> Admission | None:
        """Admit a request; while it does not fit, finish running ones, oldest first."""
        while True:
            self.verbs += 1
            admission = self._call(self._adapter.admit, key)
            if admission is not None or not self.running:
                return admission
            self._finish_oldest()

    def _started(self, key: Key, admission: Admission) -> RunningRequest:
        """The request that was admitted. Raises InvariantError for a hit that is not part of the prompt (REQ-4)."""
        cached, most = admission.cached_tokens, aligned_count(key, self._config)
        if not 0 <= cached <= most:
            raise violation("REQ-4", "admit", f"at most {most} cached tokens", cached)
        tables = self._adapter.tables(admission.request)
        return RunningRequest(
            *(admission.request, key, admission.table, admission.state),
            owner=0,
            computed_tokens=cached,
            awaited=None,
            tables=tables,
            kv_tokens=cached,
        )

    def _finish_oldest(self) -> None:
        self.verbs += 1
        self._call(self._adapter.finish, self.running.popleft().request)


class RequestAudit:
    """Checks the laws of blocks on the whole cache. `checks` counts the audits with a snapshot."""

    def __init__(self, adapter: CacheAdapter, config: CacheConfig, session: RequestSession) -> None:
        self._has_snapshot = Capability.SNAPSHOT in adapter.capabilities
        self._session = session
        # The prefixes of all blocks of a trace are too much memory.
        self._view = BlockView(adapter, config, lambda: session.verbs, checks_computed=False)
        self.checks = 0

    def check(self) -> None:
        """Raise InvariantError unless every law holds, and every cached block has its bytes."""
        self._check(self._session.running)

    def check_when_idle(self) -> None:
        """With no running request: the same, and no block is held (POOL-1)."""
        self._check(())

    check_drained = check_when_idle

    def _check(self, running: Collection[RunningRequest]) -> None:
        self._view.check(running, is_awaited=False)
        self.checks += self._has_snapshot
