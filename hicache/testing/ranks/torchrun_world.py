"""A RankWorld of the processes that torchrun has started, on one host or on several."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import rendezvous  # type: ignore[attr-defined]

from hicache.errors import ConfigurationError
from hicache.testing.ranks.mesh import Mesh
from hicache.testing.ranks.process_world import ProcessWorld


def join_torchrun(mesh: Mesh, backend: str, timeout_s: float) -> ProcessWorld:
    """Connect to the other processes over torchrun's own store, and initialise torch.distributed.

    Raises ConfigurationError when torchrun has not started as many processes as the mesh has ranks.
    """
    started = int(os.environ.get("WORLD_SIZE", "0"))
    if started != mesh.ranks:
        raise ConfigurationError(f"{mesh.name} needs {mesh.ranks} processes of torchrun, and {started} were started")
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_s)
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    return ProcessWorld(mesh.topology(rank), store, device, timeout_s, is_recorded=True, note=lambda _: None)
