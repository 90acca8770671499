"""What the ranks of a case do, each in a process: with the groups of the cache, and with torch's collectives alone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch._C._distributed_c10d import _dump_fr_trace  # type: ignore[attr-defined]
from torch.distributed import Store  # type: ignore[attr-defined]

from hicache.config import Topology
from hicache.errors import RankError
from hicache.parallel.group import Group, Reduction
from hicache.parallel.mesh import axis_ranks, world_rank, world_size
from hicache.parallel.torch_group import open_groups
from hicache.tests.cache.parallel.processes import Outcome, run_ranks
from hicache.tests.proof.divergence.injected import Case, Leaving, PlannedCall, Verb

DEADLINE_S = 6.0
DEAD_EXIT_CODE = 7
ENVIRONMENT = {"TORCH_FR_BUFFER_SIZE": "1000"}
"""How many collectives the flight recorder keeps."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a rank ended: in which call, an index of its own calls, and with which error; both None without an error."""

    call: int | None
    error: str | None


def ours(case: Case, folder: Path) -> list[Outcome]:
    """Run the case on the groups of the cache. The value of an outcome is Ended, or None if the process died."""
    return run_ranks(partial(_on_groups, case), folder, case.topology)


def detail(case: Case, folder: Path) -> list[Outcome]:
    """Run the case on torch's collectives, which TORCH_DISTRIBUTED_DEBUG=DETAIL compares."""
    return run_ranks(partial(_on_torch, case, None), folder, case.topology, environment=ENVIRONMENT)


def recorder(case: Case, folder: Path) -> list[Outcome]:
    """Run the case on torch's collectives. The flight recorder of each rank is written to `rank<N>` in the folder."""
    return run_ranks(partial(_on_torch, case, folder), folder, case.topology, environment=ENVIRONMENT)


def _on_groups(case: Case, topology: Topology, store: Store) -> Ended:
    groups = open_groups(topology, store, "cpu", DEADLINE_S)

    def make(call: PlannedCall) -> None:
        _make(groups[call.axis], call)

    with ExitStack() as leaving:
        leaving.callback(groups.close)
        return _play(case, make, topology, store, RankError)


def _make(group: Group, call: PlannedCall) -> None:
    values = [1] * call.count
    if call.verb is Verb.BROADCAST:
        group.broadcast(values, call.purpose)
    elif call.verb is Verb.BARRIER:
        group.barrier(call.purpose)
    else:
        group.reduce(values, Reduction(call.verb.value), call.purpose)


def _on_torch(case: Case, record: Path | None, topology: Topology, store: Store) -> Ended:
    if record is None:
        detail_level: Any = distributed  # whose types leave out the debug level
        detail_level.set_debug_level(detail_level.DebugLevel.DETAIL)
    groups = {}
    for axis, lists in axis_ranks(topology).items():
        for ranks in (ranks for ranks in lists if len(ranks) > 1):
            made = distributed.new_group(list(ranks), timeout=timedelta(seconds=DEADLINE_S))
            if world_rank(topology) in ranks:
                groups[axis] = made

    def dump() -> None:
        if record is not None:
            draft = record / f"draft{world_rank(topology)}"
            draft.write_bytes(_dump_fr_trace(True, False, False))
            draft.rename(record / f"rank{world_rank(topology)}")  # gloo may end the process while it writes

    def make(call: PlannedCall) -> None:
        work = _begin(groups[call.axis], call)
        dump()  # before the wait: gloo may end the process in it
        work.wait()

    dump()
    return _play(case, make, topology, store, RuntimeError)


def _begin(group: distributed.ProcessGroup, call: PlannedCall) -> distributed.Work:
    values = torch.ones(call.count, dtype=torch.int64)
    if call.verb is Verb.BROADCAST:
        work = distributed.broadcast(values, group=group, group_src=0, async_op=True)
    elif call.verb is Verb.BARRIER:
        work = distributed.barrier(group=group, async_op=True)
    else:
        operation = getattr(distributed.ReduceOp, call.verb.value)
        work = distributed.all_reduce(values, operation, group=group, async_op=True)
    assert isinstance(work, distributed.Work), f"this rank is in the group of {call.axis}"
    return work


def _play(
    case: Case, make: Callable[[PlannedCall], None], topology: Topology, store: Store, error: type[Exception]
) -> Ended:
    """Make the calls of this rank, until one raises an error."""
    rank = world_rank(topology)
    others = [f"done/{other}" for other in range(world_size(topology)) if other != rank]
    try:
        for at, call in enumerate(case.made_by(rank)):
            try:
                make(call)
            except error as raised:
                return Ended(at, str(raised))
        if rank == case.rank and case.leaving:
            _leave(case.leaving, lambda: store.wait(others))
        if rank == case.rank and case.leaving is Leaving.IS_LATE:
            return Ended(case.at, _error_of(make, case.calls[case.at], error))
    finally:
        store.set(f"done/{rank}", "")
    return Ended(None, None)


def _leave(leaving: Leaving, others_are_done: Callable[[], object]) -> None:
    if leaving is Leaving.DIES:
        os._exit(DEAD_EXIT_CODE)
    elif leaving is Leaving.IS_KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    elif leaving is Leaving.HANGS:
        others_are_done()
    elif leaving is Leaving.IS_LATE:
        time.sleep(1.2 * DEADLINE_S)


def _error_of(make: Callable[[PlannedCall], None], call: PlannedCall, error: type[Exception]) -> str | None:
    try:
        make(call)
    except error as raised:
        return str(raised)
    return None
