"""StorageTier: the parts of a cache's storage tier, and what becomes of them when the backend does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from hicache.bounded import call_aside, call_within
from hicache.errors import ConfigurationError
from hicache.storage.base import StorageBackend
from hicache.tiers.prefetch import PrefetchManager
from hicache.tiers.quarantine import Quarantine
from hicache.tiers.storage_jobs import StorageJobs
from hicache.tiers.storage_worker import StorageWorker
from hicache.tiers.store import StorageWriter
from hicache.transfer.job import StorageJob
from hicache.transfer.queue import TransferQueue

LOG = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class StorageTier:
    """The parts of the storage tier. Reads and writes have a queue and a thread each.

    `name`: of the backend. `limit_s`: how long one call of it may take. `is_overdue`: a call of this thread took longer
    on this rank. `abandoned`: the name of each backend that was abandoned.
    """

    name: str
    limit_s: float
    open_backend: Callable[[str], StorageBackend]
    jobs: StorageJobs
    worker: StorageWorker
    reads: TransferQueue[StorageJob]
    writes: TransferQueue[StorageJob]
    writer: StorageWriter
    prefetches: PrefetchManager
    quarantine: Quarantine
    abandoned: list[str]
    is_overdue: bool = False

    @property
    def is_late(self) -> bool:
        """Whether the backend has not answered in time on this rank."""
        return self.worker.is_attached and (self.is_overdue or self.reads.is_late or self.writes.is_late)

    @property
    def is_running(self) -> bool:
        """Whether the backend may be in a call, as all ranks know it."""
        return self.worker.is_attached and bool(self.reads.running or self.writes.running)

    # The calls of the scheduler's thread. Each is waited for as long as one call may take.

    def open(self) -> None:
        """Open the backend, and call it from now on. Raises ConfigurationError when it does not answer."""
        try:
            self.attach()
        except TimeoutError as error:
            raise ConfigurationError(f"storage backend {self.name}: {error}") from error

    def attach(self) -> None:
        """The same. Raises TimeoutError when the backend does not answer."""
        self.is_overdue = False
        self.worker.attach(call_within(self.limit_s, f"open of {self.name}", self._opened, StorageBackend.close))

    def detach(self) -> None:
        """Close the backend. One that does not answer is gone all the same."""
        self._call("close", self.worker.detach)

    def clear(self) -> bool:
        """Remove all that the cache has in storage; False when that is not possible now."""
        return bool(self._call("clear", self.worker.clear))

    def _opened(self) -> StorageBackend:
        return self.worker.prepared(self.open_backend(self.jobs.keys.scope), self.jobs.page_bytes())

    def _call(self, verb: str, act: Callable[[], bool | None]) -> bool | None:
        try:
            return call_within(self.limit_s, f"{verb} of {self.name}", act, lambda _: None)
        except (TimeoutError, RuntimeError) as error:
            self.is_overdue = isinstance(error, TimeoutError)
            self.worker.note_error(verb, str(error), error)
            return None

    # A backend that does not answer.

    def stop(self) -> bool:
        """Let all that runs end, and wait for it; False when the backend does not answer in time."""
        running = [(queue, job) for queue in (self.reads, self.writes) for job in queue.running if self.is_running]
        for queue, job in running:
            queue.stop(job)
        left = [job for queue, job in running if not queue.wait_for(job)]
        return not left

    def abandon(self) -> None:
        """Go on without the backend. What it may still read or write is in quarantine until its calls have ended."""
        LOG.error("storage backend %s has not answered in %g s: it is abandoned", self.name, self.limit_s)
        self.abandoned.append(self.name)
        self.is_overdue = False
        self.worker.abandon()
        self.prefetches.disown(self.quarantine)
        self.writer.abandon(self.quarantine)

    def take_over(self) -> None:
        """Free what the calls of an abandoned backend used that have ended. After the last one it is closed."""
        self.quarantine.take_over()
        if self.quarantine.is_empty:
            self._close_abandoned()

    def close(self, then: Callable[[], object]) -> None:
        """End everything, and call `then` once the backend uses no host memory any more: at once if it answers."""
        with ExitStack() as closing:
            closing.callback(self.end, then)
            closing.callback(self.writer.clear)
            closing.callback(self.prefetches.reset)
            if not self.stop():
                self.abandon()

    def end_calls(self) -> bool:
        """End the executors, and an abandoned backend with them. Whether no backend is in a call any more."""
        have_ended = [queue.close() for queue in (self.reads, self.writes)]
        if all(have_ended):
            self._close_abandoned()
        return all(have_ended)

    def end(self, then: Callable[[], object]) -> None:
        """End the executors and close the backend, also while jobs run. `then`: as in `close`."""
        have_ended = [queue.close() for queue in (self.reads, self.writes)]
        if all(have_ended):
            self.detach()
            then()
            return
        LOG.error("storage backend %s has not answered: host memory is freed when it does", self.name)
        call_aside(f"close of {self.name}", lambda: self._close_later(then))

    def _close_later(self, then: Callable[[], object]) -> None:
        self.reads.join()
        self.writes.join()
        self.worker.abandon()
        close = self.worker.forget_abandoned()
        if close is not None:
            close()
        then()

    def _close_abandoned(self) -> None:
        close = self.worker.forget_abandoned()
        if close is not None:
            call_aside(f"close of {self.name}", close)
