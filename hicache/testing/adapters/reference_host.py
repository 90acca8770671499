"""ReferenceHostVerbs: opens the reference cache, and drives its host tier and its executor."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import ClassVar

from hicache.cache import UnifiedRadixCache
from hicache.components.locks import LockReceipt
from hicache.config import CacheConfig, ExecutorKind
from hicache.parallel.agree import Agreement
from hicache.parallel.group import Group
from hicache.stacks import layer_order
from hicache.testing.adapters.reference_storage import ReferenceStorageVerbs, world_of
from hicache.testing.host_verbs import HostVerbs, PageBytes, PendingTransfer
from hicache.tiers.host_tier import HostTier
from hicache.tiers.loads import LoadTicket
from hicache.transfer.executors.opening import open_executor
from hicache.transfer.executors.protocol import Copier, Executor
from hicache.transfer.executors.stepped import StepExecutor
from hicache.transfer.executors.threaded import ThreadExecutor
from hicache.tree.node import Node
from hicache.types import EvictResult, LoadBack, Pool, Sizes, Slots, TransferPhase


class ReferenceHostVerbs(HostVerbs, ReferenceStorageVerbs):
    """The reference cache with its transfers and its storage.

    `longest_pause_s`: what a copy by a thread is delayed by at most, at random.
    """

    longest_pause_s: ClassVar[float] = 0.0

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self._executor: Executor | None = None
        self._config = config
        self.world = world_of(config, self.longest_pause_s)
        self.cache = self._open_cache(Agreement(groups or {}))

    def close(self) -> None:
        self.cache.close()

    def step(self) -> None:
        self.cache.step()

    def drain(self) -> None:
        self.cache.drain()

    def evict_host(self, component: str, tokens: int) -> EvictResult:
        return self._host.evict(component, tokens)

    def lock_host(self, handle: Node) -> LockReceipt:
        return self._host.lock(handle)

    def unlock_host(self, receipt: LockReceipt) -> None:
        self._host.unlock(receipt)

    def load_back(self, handle: Node, *, quota: int | None) -> LoadBack | None:
        return self._host.load_back(handle, quota)

    def load_phase(self, ticket: LoadTicket) -> TransferPhase:
        return self._host.phase(ticket)

    def claim(self, ticket: LoadTicket) -> Slots | None:
        return self._host.claim(ticket)

    def abandon(self, ticket: LoadTicket) -> None:
        self._host.abandon(ticket)

    def host_sizes(self) -> Mapping[str, Sizes]:
        return self._host.sizes()

    def read_host(self, pool: Pool, slots: Slots, layer: int) -> PageBytes:
        return self._host.bank.read(pool, slots, layer)

    def is_pinned(self, pool: Pool) -> bool:
        return all(raw.is_pinned() for raw in self._host.bank.buffers[pool].raw)

    def pending(self) -> Sequence[PendingTransfer]:
        return [self._pending(number) for number in self._steps.pending()]

    def advance(self, ticket: int) -> None:
        self._steps.advance(ticket)

    def complete(self, ticket: int) -> None:
        self._steps.complete(ticket)

    def fail(self, ticket: int, parts_done: int) -> None:
        self._steps.fail(ticket, parts_done)

    def fail_waits(self, count: int) -> None:
        self._steps.waits_to_fail = count

    def layer_ready(self, ticket: LoadTicket, pool: Pool, layer: int) -> bool:
        is_partner = pool is Pool.SWA and not self._host.phase(ticket).has_ended
        if is_partner and not self._host.loads.has_partners(ticket):
            return False
        specs = {pool: buffers.spec for pool, buffers in self.cache.pools.buffers.items()}
        place = next(number for number, layers in enumerate(layer_order(specs)) if (pool, layer) in layers)
        return place < self._host.layers_done(ticket)

    def _pending(self, number: int) -> PendingTransfer:
        job, layers = self._steps.job(number), self._host.layers
        return PendingTransfer(number, job.kind, len(job.parts), layers, self._steps.progress(number).layers)

    def _open_cache(self, agreement: Agreement) -> UnifiedRadixCache:
        world = self.world.storage() if self.world else None
        return agreement.together(
            lambda: UnifiedRadixCache(self._config, self._open, world, agreement), UnifiedRadixCache.close, "open"
        )

    def _open(self, copier: Copier) -> Executor:
        host = self._config.host
        assert host is not None, "an executor is opened for a host tier"
        if host.executor is ExecutorKind.THREADED and self.longest_pause_s:
            chance = random.Random(0)
            self._executor = ThreadExecutor(copier, lambda: time.sleep(chance.uniform(0, self.longest_pause_s)))
        else:
            self._executor = open_executor(host.executor, copier)
        return self._executor

    @property
    def _host(self) -> HostTier:
        if self.cache.host is None:
            raise ValueError(f"{self._config.name} has no host tier")
        return self.cache.host

    @property
    def _steps(self) -> StepExecutor:
        if not isinstance(self._executor, StepExecutor):
            raise TypeError(f"transfers of {self._config.name} are not moved by the test")
        return self._executor
