"""BackendWorker: asks the backend for the pages of a batch, straight into and out of the host pools."""

from __future__ import annotations

import logging

from hicache.pools.host import HostPools
from hicache.storage.base import StorageBackend
from hicache.transfer.storage_job import PageBatch, PrefixQuery, StorageJob
from hicache.types import Pool, StorageKind

LOG = logging.getLogger(__name__)


class BackendWorker:
    """Runs on the threads of an executor. What a backend raises is logged once, and is a miss.

    `written`: the pools whose pages this rank writes. Those of others it leaves to the rank that does.
    """

    def __init__(self, bank: HostPools, written: frozenset[Pool]) -> None:
        self._bank = bank
        self._written = written
        self._backend: StorageBackend | None = None
        self._has_complained = False

    @property
    def is_attached(self) -> bool:
        """Whether there is a backend to ask."""
        return self._backend is not None

    def attach(self, backend: StorageBackend) -> None:
        """Ask this backend from now on. It is told of the host pools' memory first."""
        backend.register(self._bank.regions())
        self._backend = backend

    def detach(self) -> None:
        """Close the backend."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def clear(self) -> bool:
        """Remove all that the cache has in storage; False when there is no backend, or when it cannot."""
        if self._backend is None:
            return False
        try:
            return self._backend.clear()
        except Exception:
            LOG.exception("storage raised when it was told to remove what it has")
            return False

    def work(self, job: StorageJob, batch: PageBatch | PrefixQuery) -> int:
        """Do one batch; how many of its first pages are whole, or can be used."""
        backend = self._backend
        if backend is None:
            return 0
        try:
            if isinstance(batch, PrefixQuery):
                return min(backend.exists(batch.keys, batch.pools, job.prefix_keys), len(batch.keys))
            return self._transfer(backend, job, batch)
        except Exception:
            if not self._has_complained:
                self._has_complained = True
                LOG.exception("storage raised at %s job %d; what follows is not logged", job.kind.value, job.number)
            return 0

    def _transfer(self, backend: StorageBackend, job: StorageJob, batch: PageBatch) -> int:
        if job.kind is StorageKind.PERSIST and batch.pool not in self._written:
            return len(batch.keys)
        buffers = self._bank.buffers[batch.pool]
        pages = [buffers.pieces(page) for page in batch.pages.tolist()]
        verb = backend.set if job.kind is StorageKind.PERSIST else backend.get
        answers = verb(batch.keys, pages, job.prefix_keys)
        if len(answers) != len(batch.keys):
            raise ValueError(f"{len(answers)} answers for {len(batch.keys)} keys")
        return answers.index(False) if False in answers else len(answers)
