"""Runtime: what a cache runs on besides memory: executors, a storage backend and the time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hicache.clock import Clock, WallClock
from hicache.config import CacheConfig, ExecutorKind
from hicache.errors import ConfigurationError
from hicache.optional_torch import torch
from hicache.storage.base import StorageBackend
from hicache.storage.registry import open_backend
from hicache.transfer.executors import Executor, StepExecutor, ThreadExecutor
from hicache.transfer.job import CopyJob, CopyWorker, LayeredCopier, StorageJob, Worker
from hicache.transfer.streams import StreamExecutor
from hicache.types import TransferKind


@dataclass(frozen=True, slots=True)
class Runtime:
    """What a cache runs on: executors for copies and for storage, a storage backend, and the time. Tests replace parts.

    `open_copies`: for each direction. `open_storage`: for "read" and "write", each with a thread of its own, so that a
    backend that hangs stops no copy. `open_backend`: opens a scope.
    """

    open_copies: Callable[[TransferKind, LayeredCopier], Executor[CopyJob]]
    open_storage: Callable[[str, Worker[StorageJob]], Executor[StorageJob]]
    open_backend: Callable[[str], StorageBackend]
    clock: Clock

    @classmethod
    def of(cls, config: CacheConfig) -> Runtime:
        """What a configuration names: its executors, its backend, and the machine's own time."""
        copies = config.host.executor if config.host else ExecutorKind.THREADED
        storage = config.storage
        jobs = storage.executor if storage else ExecutorKind.THREADED
        backend, options = (storage.backend, storage.options) if storage else ("memory", {})
        return cls(
            lambda kind, copier: open_copies(copies, kind, copier),
            lambda name, worker: open_storage(jobs, name, worker, storage.answer_timeout_s if storage else math.inf),
            lambda scope: open_backend(backend, scope, options),
            WallClock(),
        )


def open_copies(executor: ExecutorKind, kind: TransferKind, copier: LayeredCopier) -> Executor[CopyJob]:
    """An executor for the copies of one direction. Raises ConfigurationError for CUDA streams without a CUDA device.

    Backups are not read layer by layer: a thread copies all layers at once, and of a load-back where that is faster.
    """
    worker = CopyWorker(copier)
    if executor is ExecutorKind.STEPPED:
        return StepExecutor(worker)
    if executor is ExecutorKind.STREAMS:
        if not torch.cuda.is_available():
            raise ConfigurationError("executor 'streams' needs a CUDA device, and torch finds none")
        return StreamExecutor(copier)
    by_layers = kind is TransferKind.LOAD and copier.layers_cost_little
    return ThreadExecutor(f"hicache-{kind.value}", worker.step if by_layers else worker.rest)


def open_storage(
    executor: ExecutorKind, name: str, worker: Worker[StorageJob], limit_s: float = math.inf
) -> Executor[StorageJob]:
    """An executor for the reads or the writes of storage. `limit_s`: what one call of the backend may take."""
    if executor is ExecutorKind.STEPPED:
        return StepExecutor(worker)
    return ThreadExecutor(f"hicache-storage-{name}", worker.step, limit_s=limit_s)
