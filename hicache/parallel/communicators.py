"""Communicators: the process groups that a rank has in torch.distributed, which are made and closed together."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import wait
from datetime import timedelta
from typing import Any

from hicache.bounded import in_thread
from hicache.config import Topology
from hicache.errors import InvariantError
from hicache.optional_torch import distributed, torch
from hicache.parallel.mesh import axis_ranks, world_rank

NCCL_DEADLINES = 4
"""NCCL's own timeout, in deadlines. It ends the process, so it comes after the missing rank has been named."""

HIGH_PRIORITY = -1
"""Of a stream in CUDA. The model's kernels run at 0: an agreement at 0 too would wait until the GPU has room for it."""

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}


class Communicators:
    """The process groups of one rank, by axis; none along an axis of one rank.

    `stream`: the CUDA stream on which collectives run, so that they do not wait for the model; None on other
    devices. It has a high priority, and so has NCCL's own.
    `timeout_s`: the deadline of every call. A thread may be making groups while another one closes them: the group that
    it has begun is destroyed when it is made.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream | None, timeout_s: float) -> None:
        self.device = device
        self.stream = stream
        self._timeout = timedelta(seconds=timeout_s * (NCCL_DEADLINES if device.type == "cuda" else 1))
        self._patience_s = timeout_s / 2
        self._groups: dict[str, distributed.ProcessGroup] = {}
        self._is_closed = False
        self._destroying = threading.Lock()

    @classmethod
    def on(cls, device: torch.device, timeout_s: float) -> Communicators:
        """Without groups yet, and with a stream of their own on a GPU."""
        is_gpu = device.type == "cuda"
        stream = torch.cuda.Stream(device, HIGH_PRIORITY) if is_gpu else None  # type: ignore[no-untyped-call]
        return cls(device, stream, timeout_s)

    @property
    def axes(self) -> Iterable[str]:
        """The axes along which this rank has a group."""
        return self._groups.keys()

    def make(self, topology: Topology) -> None:
        """Make every group of the mesh, those of other ranks too, as torch asks of each rank."""
        for axis, lists in axis_ranks(topology).items():
            for ranks in (ranks for ranks in lists if len(ranks) > 1):
                self.add(axis, ranks, world_rank(topology))

    def add(self, axis: str, ranks: Sequence[int], own_rank: int) -> None:
        """Make one group. It is this rank's along the axis if `own_rank` is among its ranks."""
        self._require_open(axis)
        backend = BACKENDS[self.device.type]
        options: dict[str, Any] = {"timeout": self._timeout, "backend": backend}
        if backend == "nccl":
            options["pg_options"] = distributed.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            options["pg_options"]._timeout = self._timeout  # noqa: SLF001 - torch warns where it differs
        made = distributed.new_group(list(ranks), **options)
        if own_rank in ranks:
            self._groups[axis] = made
        self._destroy_if_closed()

    def group(self, axis: str) -> distributed.ProcessGroup:
        """The group along an axis. Raises InvariantError after `close`."""
        self._require_open(axis)
        return self._groups[axis]

    def abort(self) -> None:
        """End what runs on a GPU: NCCL's kernel would wait there forever. Gloo ends its calls itself.

        All groups together, each in a thread: NCCL may wait in the abort of one until the GPU is idle, and the kernels
        of the others run until they are aborted. What has not ended after half of the deadline is left alone.
        """
        if self.stream is not None:
            self._abort([*self._groups.values()])

    def close(self) -> None:
        """Destroy the groups, in one order on all ranks. The second call has no effect.

        NCCL waits there for the other ranks. What has not ended after half of the deadline is aborted.
        """
        self._is_closed = True
        groups = [*self._groups.values()]
        if self.stream is None:
            self._destroy_if_closed()
        elif not wait([in_thread(self._destroy_if_closed, "close")], self._patience_s).done:
            self._abort(groups)

    def _abort(self, groups: Iterable[distributed.ProcessGroup]) -> None:
        wait([in_thread(group.abort, "abort") for group in groups], self._patience_s)

    def _require_open(self, axis: str) -> None:
        if self._is_closed:
            raise InvariantError(f"the groups of this rank are closed: a call of {axis} came after close()")

    def _destroy_if_closed(self) -> None:
        if not self._is_closed:
            return
        with self._destroying:
            while self._groups:
                _, group = self._groups.popitem()
                distributed.destroy_process_group(group)
