"""StorageTier: the parts of a cache's storage tier, and what becomes of them when the backend does not answer."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

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
    on this rank. `abandoned`: the name of each backend that was disowned. `disowned`: what closes those that are not
    closed yet.
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
    disowned: list[Callable[[], object]] = field(default_factory=list)

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

    def _call(self, verb: str, act: Callable[[], object]) -> object:
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

    def disown(self) -> None:
        """Go on without the backend. What it may still read or write is in quarantine until its calls have ended."""
        LOG.error("storage backend %s has not answered in %g s: it is abandoned", self.name, self.limit_s)
        self.abandoned.append(self.name)
        self.is_overdue = False
        self.disowned.append(self.worker.disown())
        self.prefetches.disown(self.quarantine)
        self.writer.disown(self.quarantine)

    def take_over(self) -> None:
        """Free what the calls of a disowned backend used that have ended. After the last one it is closed."""
        self.quarantine.take_over()
        if self.quarantine.is_empty:
            self._close_disowned()

    def reset(self) -> None:
        """End everything, also if a part of it raises. A backend that does not answer is disowned."""
        with ExitStack() as ending:
            ending.callback(self.writer.reset)
            ending.callback(self.prefetches.reset)
            if not self.stop():
                self.disown()

    def close_executors(self) -> bool:
        """Close the executors, and a disowned backend with them. Whether no backend is in a call any more."""
        have_ended = self._close_queues()
        if have_ended:
            self._close_disowned()
        return have_ended

    def close(self, then: Callable[[], object]) -> None:
        """Close the executors and the backend, also while jobs run.

        `then`: called once the backend uses no host memory any more: at once if it answers.
        """
        self.disowned.append(self.worker.disown())
        if self._close_queues():
            for close in self.disowned:
                self._call("close", close)
            then()
            return
        LOG.error("storage backend %s has not answered: host memory is freed when it does", self.name)
        call_aside(f"close of {self.name}", lambda: self._close_later(then))

    def _close_queues(self) -> bool:
        have_ended = [queue.close() for queue in (self.reads, self.writes)]
        return all(have_ended)

    def _close_later(self, then: Callable[[], object]) -> None:
        self.reads.join()
        self.writes.join()
        for close in (*self.disowned, then):
            close()

    def _close_disowned(self) -> None:
        closing, self.disowned = self.disowned, []
        for close in closing:
            call_aside(f"close of {self.name}", close)
