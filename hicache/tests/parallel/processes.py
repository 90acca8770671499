"""Run one function on every rank of a mesh, one process for each rank, and collect the outcomes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import distributed
from torch.distributed import FileStore, Store  # type: ignore[attr-defined]

from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.mesh import topology_of, world_rank, world_size

KILL_AFTER_S = 60
"""Ranks that hang are killed after this time, which is far beyond every deadline in these tests."""

CONTEXT = get_context("forkserver")
CONTEXT.set_forkserver_preload(["__main__", __name__, "hicache.parallel.torch_group"])

Body = Callable[[Topology, Store], Any]
"""The function that a rank runs. Its result is pickled."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a rank ended. `value`: what its body returned, or None if it died."""

    value: Any
    exit_code: int | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The RankError that a call raised, and how many collectives of torch the call began."""

    message: str
    group: str
    ranks: tuple[int, ...]
    collectives: int


def refusal_of(call: Callable[[], object]) -> Refusal:
    """The RankError that a call raises. Raises AssertionError when it raises none."""
    with patch.object(distributed, "all_reduce", wraps=distributed.all_reduce) as begun:
        try:
            result = call()
        except RankError as error:
            return Refusal(str(error), error.group, error.ranks, begun.call_count)
    raise AssertionError(f"expected a RankError, the call returned {result!r}")


def run_ranks(body: Body, folder: Path, mesh: Topology, backend: str = "gloo") -> list[Outcome]:
    """Run `body` on every rank of the mesh at once, in a process group. Raises AssertionError when a rank hangs."""
    pipes, processes = [], []
    for rank in range(world_size(mesh)):
        ours, theirs = CONTEXT.Pipe(duplex=False)
        process = CONTEXT.Process(
            target=_run_rank, args=(body, folder / "store", place_in(mesh, rank), backend, theirs)
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        _wait_for([process.sentinel for process in processes])
        return [Outcome(_received(pipe), process.exitcode) for pipe, process in zip(pipes, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()


def _wait_for(sentinels: list[int]) -> None:
    limit_s, waiting = time.monotonic() + KILL_AFTER_S, list(sentinels)
    while waiting:
        ended = wait(waiting, limit_s - time.monotonic())
        assert ended, f"ranks {[sentinels.index(sentinel) for sentinel in waiting]} hang after {KILL_AFTER_S} s"
        waiting = [sentinel for sentinel in waiting if sentinel not in ended]


def _received(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        return None


def _run_rank(body: Body, path: Path, topology: Topology, backend: str, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    size, rank = world_size(topology), world_rank(topology)
    store = FileStore(str(path), size)
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    pipe.send(body(topology, store))


def place_in(mesh: Topology, rank: int) -> Topology:
    """The place of a world rank in a mesh. `mesh`: any place of that mesh."""
    return topology_of(rank, tp_size=mesh.tp_size, cp_size=mesh.cp_size, pp_size=mesh.pp_size, dp_size=mesh.dp_size)
