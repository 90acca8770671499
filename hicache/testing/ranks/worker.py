"""What a process of several does: joins the others, runs its function, and leaves word of what it came to."""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]

from hicache.errors import RankError
from hicache.testing.ranks.call import GATHER, Call
from hicache.testing.ranks.compared_calls import ComparedCalls
from hicache.testing.ranks.mesh import Mesh
from hicache.testing.ranks.outcome import Desk, Outcome
from hicache.testing.ranks.process_world import ProcessWorld
from hicache.testing.ranks.store_meeting import StoreMeeting

LAST_LOOK_S = 0.5
"""Before its time is over a process writes down where it is."""


@dataclass(frozen=True, slots=True)
class Task:
    """What every process is told. `entry`: called with the world and the arguments. `ends_at_s`: in time.time()."""

    entry: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mesh
    backend: str
    folder: Path
    timeout_s: float
    ends_at_s: float
    is_recorded: bool


def work(task: Task) -> None:
    """Be the rank that the environment names, to the end."""
    # When one rank dies, the agent ends the others; each says how it took it before it lets itself be ended.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    desk = Desk(task.folder, int(os.environ["RANK"]))
    with desk.stack.open("w", encoding="utf-8") as stack:
        faulthandler.dump_traceback_later(max(task.ends_at_s - time.time() - LAST_LOOK_S, LAST_LOOK_S), file=stack)
        try:
            _take_part(task, desk)
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _take_part(task: Task, desk: Desk) -> None:
    try:
        world = _join(task, desk)
    except Exception:  # noqa: BLE001 - whatever it is, it is this rank's outcome
        desk.hand_in(Outcome(desk.rank, None, f"could not join the others:\n{traceback.format_exc()}"))
        return
    outcome = _run(task, world, desk.rank)
    desk.hand_in(outcome)
    if not outcome.failure:
        _part(world)


def _join(task: Task, desk: Desk) -> ProcessWorld:
    """Meet the other processes at the one file of this launch."""
    ranks = task.mesh.ranks
    store = FileStore(str(task.folder / "store"), ranks)
    device = "cpu"
    if task.backend == "nccl":
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    _await_all(store, task, desk)
    distributed.init_process_group(
        task.backend, store=store, rank=desk.rank, world_size=ranks, timeout=timedelta(seconds=task.timeout_s)
    )
    topology = task.mesh.topology(desk.rank)
    return ProcessWorld(topology, store, device, task.timeout_s, is_recorded=task.is_recorded, note=desk.note)


def _await_all(store: Store, task: Task, desk: Desk) -> None:
    """Begin together: how long processes take to start on a busy machine is no rank's silence."""
    patience_s = max(task.ends_at_s - time.time(), 0.0)
    meeting = StoreMeeting(PrefixStore("start", store), "start", "world", task.mesh.ranks, patience_s)
    ComparedCalls(desk.rank, meeting, desk.note).answer(Call(GATHER, "start", 0), "")


def _run(task: Task, world: ProcessWorld, rank: int) -> Outcome:
    try:
        value = task.entry(world, *task.arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this rank's outcome
        world.leave(f"had raised {type(error).__name__}: {error}")
        return Outcome(rank, None, f"raised:\n{traceback.format_exc()}")
    world.leave("had ended")
    return Outcome(rank, value, "")


def _part(world: ProcessWorld) -> None:
    """Close this process's connections when nobody reads from them any more, or when they have failed."""
    with suppress(RankError):
        world.await_end()
        distributed.destroy_process_group()
