"""ModelledReference: the reference on CUDA devices that are a model, which finds accesses in no order."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import cache, wraps
from inspect import getattr_static
from typing import Any, ClassVar

import numpy as np
import torch

from hicache.config import CacheConfig, ExecutorKind
from hicache.parallel.group import Group
from hicache.parallel.mesh import world_rank
from hicache.pools.buffers import PoolBuffers
from hicache.testing.adapter import CacheAdapter, PageBytes
from hicache.testing.caches.reference import ReferenceAdapter
from hicache.testing.cuda.model import CudaModel, Items
from hicache.transfer.executors import Executor
from hicache.transfer.job import PageBatch, Progress, StorageJob, StoreBatch, Worker
from hicache.types import Slots, StorageKind


class ModelledReference(ReferenceAdapter):
    """Each verb runs with torch.cuda replaced by a model, and raises when the model has found a race.

    `order`: the seed of the order in which streams go on. Each rank has another order.
    """

    order: ClassVar[int] = 0

    def __init__(self, config: CacheConfig, groups: Mapping[str, Group] | None = None) -> None:
        self.cuda = CudaModel(random.Random(self.order + world_rank(config.topology)))
        with self.cuda.installed():
            super().__init__(config, groups)

    @classmethod
    def on_model(cls, order: int) -> type[CacheAdapter]:
        return _ordered(cls, order)

    def close(self) -> None:
        with self.cuda.installed():
            super().close()
        self.cuda.machine.drain()
        self.cuda.require_no_races()

    def write(self, pool: str, slots: Slots, layer: int, data: PageBytes) -> None:
        # The model's kernel. The pool's own writes from pageable memory, and so waits for most of what it did.
        buffers, items = self._items(self.cache.pools.buffers[pool], slots, layer)
        if not buffers.raw[0].is_cuda:
            super().write(pool, slots, layer, data)
            return
        widths = [raw.shape[-1] for raw in buffers.raw]
        parts = torch.split(torch.from_numpy(np.array(data)), widths, dim=1)

        def work() -> None:
            for raw, part in zip(buffers.raw, parts, strict=True):
                raw.raw[items] = part  # type: ignore[attr-defined]

        self.cuda.kernel("write of the model", work, writes=[(raw, items) for raw in buffers.raw])

    def read(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        buffers, items = self._items(self.cache.pools.buffers[pool], slots, layer)
        if not buffers.raw[0].is_cuda:
            return super().read(pool, slots, layer)
        found: list[torch.Tensor] = []

        def work() -> None:
            found.extend(raw.raw[items] for raw in buffers.raw)  # type: ignore[attr-defined]

        self.cuda.kernel("read of the model", work, reads=[(raw, items) for raw in buffers.raw])
        self.cuda.current_stream(buffers.raw[0].device).synchronize()
        rows: PageBytes = torch.cat(found, dim=1).numpy()
        return rows

    def read_host(self, pool: str, slots: Slots, layer: int) -> PageBytes:
        buffers, items = self._items(self._host.pools.buffers[pool], slots, layer)
        for raw in buffers.raw:
            self.cuda.host_touches(raw, items, operation="read of a test")
        return super().read_host(pool, slots, layer)

    def _open_storage(self, name: str, worker: Worker[StorageJob]) -> Executor[StorageJob]:
        # The model knows one host: what other threads access is not declared.
        storage = self._config.storage
        is_stepped = storage is not None and storage.executor is ExecutorKind.STEPPED
        return super()._open_storage(name, _ToldWorker(worker, self._moves) if is_stepped else worker)

    def _moves(self, job: StorageJob, part: int) -> None:
        """Storage reads pages of the host, or writes them."""
        moved = job.parts[part]
        batches = moved.pools if isinstance(moved, StoreBatch) else (moved,) if isinstance(moved, PageBatch) else ()
        for batch in batches:
            for raw in self._host.pools.buffers[batch.pool].raw:
                items = (torch.from_numpy(batch.pages),)
                is_write = job.kind is StorageKind.PREFETCH
                self.cuda.host_touches(raw, items, is_write=is_write, operation=f"{job.kind.value} of storage")

    def _items(self, buffers: PoolBuffers, slots: Slots, layer: int) -> tuple[PoolBuffers, Items]:
        pages, places = np.divmod(slots, buffers.page_size)
        return buffers, (torch.from_numpy(pages), layer, torch.from_numpy(places))


class _ToldWorker:
    """A worker that says which part of a job it does before it does it."""

    def __init__(self, worker: Worker[StorageJob], tell: Callable[[StorageJob, int], None]) -> None:
        self._worker = worker
        self._tell = tell

    def step(self, job: StorageJob, done: Progress) -> Progress:
        """Do the next batch."""
        if done.steps < len(job.parts):
            self._tell(job, done.steps)
        return self._worker.step(job, done)

    def rest(self, job: StorageJob, done: Progress) -> Progress:
        """Do all batches that are left."""
        while not done.has_ended:
            done = self.step(job, done)
        return done


@cache
def _ordered(modelled: type[ModelledReference], order: int) -> type[CacheAdapter]:
    return type(modelled.__name__, (modelled,), {"__module__": modelled.__module__, "order": order})


def _on_model(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def called(self: ModelledReference, *args: Any, **kwargs: Any) -> Any:
        with self.cuda.installed():
            answer = verb(self, *args, **kwargs)
        self.cuda.require_no_races()
        return answer

    return called


QUIET = frozenset(
    {
        *("close", "on_model", "read", "read_host", "write"),
        *("capabilities", "layers", "slot_bytes", "slots", "stack_layer", "partners"),
        *(
            "snapshot",
            "sizes",
            "host_sizes",
            "events",
            "counters",
            "reported_metrics",
            "page_hashes",
            "storage_keys",
            "pending",
        ),
    }
)
"""What needs no installed model, or installs it."""

for _name in [name for name in dir(ModelledReference) if not name.startswith("_") and name not in QUIET]:
    _verb = getattr_static(ModelledReference, _name)
    if callable(_verb):
        setattr(ModelledReference, _name, _on_model(_verb))
