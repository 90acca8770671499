"""Gpu: the pools of a tiny cache and its copies on a device of the model of CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from hicache.pools.buffers import RawBytes, TierPools
from hicache.pools.copy import KernelCopies, PoolCopier
from hicache.pools.host import runtime_for
from hicache.testing.cuda.model import CudaModel
from hicache.testing.cuda.streams import ModelStream
from hicache.tests.cache.pools.two_tiers import TwoTiers, two_tier_config
from hicache.transfer.job import CopyJob
from hicache.transfer.streams import StreamExecutor

OF_CACHE = torch.device("cuda", 1)
"""The device of the cache. The current device is another one."""


class BrokenCopier(PoolCopier):
    """One layer of one job cannot be queued: `broken`."""

    broken: tuple[int, int] | None = None

    def queue_layer(self, job: CopyJob, layer: int) -> None:
        if (job.number, layer) == self.broken:
            raise RuntimeError(f"no memory to queue layer {layer}")
        super().queue_layer(job, layer)


@dataclass(frozen=True, slots=True, eq=False)
class Gpu:
    """Pools on a GPU whose streams run when a test says so, or the host waits for them.

    `backups`, `loads`: the executor of each direction. `compute_stream`: the stream that the model runs on.
    `backup_stream`, `load_stream`: those of the executors.
    """

    tiers: TwoTiers
    cuda: CudaModel
    backups: StreamExecutor
    loads: StreamExecutor
    compute_stream: ModelStream
    backup_stream: ModelStream
    load_stream: ModelStream

    @classmethod
    def on(
        cls,
        cuda: CudaModel,
        executor: type[StreamExecutor] = StreamExecutor,
        copies: type[KernelCopies] = KernelCopies,
        broken: tuple[int, int] | None = None,
    ) -> Gpu:
        """On a model that is installed. `broken`: a job, and the layer of it that cannot be queued."""
        tiers = TwoTiers(two_tier_config(device=str(OF_CACHE)))
        tiers.host.pin(runtime_for(str(OF_CACHE)))
        copier = BrokenCopier(tiers.device, tiers.host, tiers.order, copies(OF_CACHE))
        copier.broken = broken
        torch.cuda.synchronize(OF_CACHE)
        cuda.waits.clear()
        backups, loads = executor(copier), executor(copier)
        return cls(tiers, cuda, backups, loads, cuda.current_stream(OF_CACHE), backups._stream, loads._stream)

    def compute(self, seed: int, job: CopyJob) -> None:
        """Launch kernels that write random bytes to the device pages of a job."""
        random = np.random.default_rng(seed)
        for buffers in self.tiers.device.buffers.values():
            moves = [part[buffers.spec.owner] for part in job.parts if buffers.spec.owner in part]
            pages = (torch.from_numpy(np.concatenate([move.device for move in moves])),)
            for raw in buffers.raw:
                data = torch.from_numpy(random.integers(0, 256, (len(pages[0]), *raw.shape[1:]), dtype=np.uint8))
                self.cuda.kernel(
                    "fill", partial(torch.Tensor.index_put_, in_memory(raw), pages, data), (), [(raw, pages)]
                )

    def close(self) -> None:
        """As a cache: end the executors, and give back the host's memory."""
        self.backups.close()
        self.loads.close()
        self.tiers.host.close()


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """What is in memory at this moment, before pending work of streams."""
    return getattr(tensor, "raw", tensor)


def contents(pools: TierPools, pool: str) -> RawBytes:
    """All bytes of a pool at this moment, uint8 [pages, layers, bytes of a page in a layer]."""
    raws = [in_memory(raw).numpy() for raw in pools.buffers[pool].raw]
    return np.concatenate(raws, axis=3).reshape(*raws[0].shape[:2], -1)
