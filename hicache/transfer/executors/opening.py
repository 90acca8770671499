"""Opens the executors that a configuration names."""

from __future__ import annotations

import torch

from hicache.config import ExecutorKind
from hicache.errors import ConfigurationError
from hicache.transfer.executors.protocol import Copier, Executor
from hicache.transfer.executors.stepped import StepExecutor
from hicache.transfer.executors.storage_stepped import StepStorage
from hicache.transfer.executors.storage_threaded import ThreadStorage
from hicache.transfer.executors.streams import StreamExecutor
from hicache.transfer.executors.threaded import ThreadExecutor
from hicache.transfer.storage_job import StorageExecutor, StorageWorker


def open_executor(kind: ExecutorKind, copier: Copier) -> Executor:
    """An executor that moves bytes with the copier. A threaded one makes no pauses.

    Raises ConfigurationError for CUDA streams where there is no CUDA device.
    """
    if kind is ExecutorKind.STEPPED:
        return StepExecutor(copier)
    if kind is ExecutorKind.STREAMS:
        if not torch.cuda.is_available():
            raise ConfigurationError("executor 'streams' needs a CUDA device, and torch finds none")
        return StreamExecutor(copier)
    return ThreadExecutor(copier, _go_on)


def open_storage_executor(kind: ExecutorKind, worker: StorageWorker) -> StorageExecutor:
    """An executor that asks storage through the worker. A threaded one makes no pauses."""
    return StepStorage(worker) if kind is ExecutorKind.STEPPED else ThreadStorage(worker, _go_on)


def _go_on() -> None:
    """Make no pause."""
