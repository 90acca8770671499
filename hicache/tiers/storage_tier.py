"""StorageTier: what only a cache with a storage tier can do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hicache.clock import Clock
from hicache.components.ensemble import Ensemble
from hicache.components.locks import Locks
from hicache.config import CacheConfig
from hicache.errors import ConfigurationError
from hicache.keys import RadixKey
from hicache.metrics import Counters
from hicache.parallel.agree import Agreement
from hicache.storage.base import StorageBackend
from hicache.tiers.arrivals import Arrivals
from hicache.tiers.fetch import Fetch
from hicache.tiers.fetches import Fetches
from hicache.tiers.host_tier import HostTier
from hicache.tiers.page_requests import PageRequests
from hicache.tiers.patience import Patience
from hicache.tiers.persists import Persists
from hicache.tiers.storage_queue import StorageQueue
from hicache.tiers.storage_worker import BackendWorker
from hicache.transfer.storage_job import StorageExecutor, StorageWorker
from hicache.tree.hashes import prefix_hashes
from hicache.tree.node import Node


@dataclass(frozen=True, slots=True, eq=False)
class StorageWorld:
    """What a storage tier is handed: how its backend is opened, who asks it, and the time."""

    open_backend: Callable[[str], StorageBackend]
    open_executor: Callable[[StorageWorker], StorageExecutor]
    clock: Clock


class StorageTier:
    """The storage of one cache, and what is on its way to and from it. Lengths are in tokens."""

    def __init__(
        self,
        config: CacheConfig,
        ensemble: Ensemble,
        locks: Locks,
        host: HostTier,
        counters: Counters,
        world: StorageWorld,
        agreement: Agreement,
    ) -> None:
        if config.storage is None:
            raise ConfigurationError("a storage tier needs `storage` in its configuration")
        self._ensemble = ensemble
        self._host = host
        self._open_backend = world.open_backend
        self._agreement = agreement
        page = ensemble.tree.bytes_per_page
        self.requests = PageRequests(config, host.bank, lambda node: prefix_hashes(node, page, counters))
        self._worker = BackendWorker(host.bank, self.requests.names.written)
        self._queue = StorageQueue(world.open_executor(self._worker))
        self.persists = Persists(ensemble, locks, self.requests, self._queue, counters)
        patience = Patience(config.storage, config.page_size, world.clock, agreement)
        self.fetches = Fetches(
            config.storage,
            ensemble,
            locks,
            host.backups,
            Arrivals(self.requests, self._queue, agreement),
            self._queue,
            patience,
            counters,
        )
        host.backups.followers.append(self._offer)
        # Not by `attach`: whether every rank has opened its backend, all agree when the whole cache is open.
        try:
            self._attach()
        except Exception:
            self._queue.close()
            raise

    def used(self, node: Node) -> None:
        """A request used the path to a node."""
        if self._worker.is_attached:
            self.persists.used(node)

    @property
    def asked(self) -> int:
        """Jobs for storage since the cache was opened."""
        return self._queue.asked

    def outcomes(self) -> list[int]:
        """How far each job that runs has come."""
        return self._queue.outcomes()

    def step(self, outcomes: Sequence[int]) -> None:
        """Take over what storage has answered to every rank, and ask what is due."""
        self._queue.settle(outcomes)
        self.persists.take_over()
        self.fetches.take_over()
        self.persists.start_due()
        self._queue.start()
        self._ensemble.flush()

    def wait(self) -> None:
        """Return when storage has answered all that it was asked here."""
        self._queue.wait()

    def prefetch(self, key: RadixKey) -> Fetch | None:
        """Bring what storage has of a key, past what the tree has, to the host; None when that is refused."""
        fetch = self.fetches.prefetch(key) if self._worker.is_attached else None
        self._ensemble.flush()
        return fetch

    def check(self, fetch: Fetch) -> int | None:
        """The tokens that a prefetch brought, or None while it is waited for. Raises ReceiptError when it was told."""
        came = self.fetches.check(fetch)
        self._ensemble.flush()
        return came

    def abort_fetch(self, fetch: Fetch) -> None:
        """Nobody waits for this prefetch any more. Raises ReceiptError when its ticket has ended."""
        self.fetches.abort(fetch)
        self._ensemble.flush()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, to or from the host."""
        return not self.fetches.under_way and self.persists.are_idle and not self._host.controller.under_way()

    def attach(self) -> bool:
        """Open the backend, on all ranks or on none; False when there is one."""
        if self._worker.is_attached:
            return False
        self._agreement.together(self._attach, lambda _: self._worker.detach(), "attach")
        return True

    def detach(self) -> bool:
        """Close the backend; False while anything is under way, or when there is none."""
        if not self._worker.is_attached or not self.is_idle:
            return False
        self._worker.detach()
        self.persists.forget()
        return True

    def clear(self) -> bool:
        """Remove all that the cache has in storage; False while anything is under way, or when a rank cannot."""
        if not self.is_idle or not self._agreement.every("clear", did=self._worker.clear()):
            return False
        self.persists.removed()
        return True

    def abort(self) -> None:
        """End everything that is under way, and free what was on its way."""
        self.fetches.clear()
        self.persists.clear()

    def close(self) -> None:
        """End everything, the executor and the backend."""
        self.abort()
        self._queue.close()
        self._worker.detach()

    def _attach(self) -> None:
        self._worker.attach(self._open_backend(self.requests.names.scope))

    def _offer(self, node: Node) -> None:
        if self._worker.is_attached:
            self.persists.offer(node)
