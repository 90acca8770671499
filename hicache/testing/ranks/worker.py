"""The process of one rank: joins the others, runs its function, and writes its outcome."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from hicache.errors import RankError
from hicache.optional_torch import FileStore, PrefixStore, Store, distributed, torch
from hicache.testing.plugin.failures import CALLED, DOING, causes_of, evidence, format_visible
from hicache.testing.processes import end_if_forked, end_running_children, left_threads
from hicache.testing.ranks.calls import GATHER, CollectiveCall, ComparedCalls, StoreSideChannel
from hicache.testing.ranks.outcome import RAISED, RankFiles, RankOutcome
from hicache.testing.ranks.process_world import ProcessWorld
from hicache.testing.ranks.world import Mesh

LEFT_RUNNING = "a thread that was left running"
"""The cause of the failure of a rank whose threads would keep its process alive."""

LEFT_PROCESS = "a process that was left running"
"""The cause of the failure of a rank that started a process which has not ended."""

STACK_MARGIN_S = 0.5
"""How long before its deadline a process writes down its stack."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """The arguments of every process. `entry`: called with the world and the arguments. `ends_at_s`: in time.time()."""

    entry: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mesh
    backend: str
    folder: Path
    timeout_s: float
    ends_at_s: float
    is_recorded: bool


def work(rank: int, task: RankTask) -> None:
    """Run one rank."""
    number, size = str(rank), str(task.mesh.ranks)
    os.environ.update(RANK=number, LOCAL_RANK=number, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    files = RankFiles(task.folder, rank)
    files.begin()
    threading.Thread(target=_end_with_parent, name="hicache-parent", daemon=True).start()
    DOING.open(files.doing)
    with files.stack.open("w", encoding="utf-8") as stack:
        faulthandler.dump_traceback_later(
            max(task.ends_at_s - time.time() - STACK_MARGIN_S, STACK_MARGIN_S), file=stack
        )
        try:
            _run_rank(task, files)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _end_with_parent() -> None:
    """End this process when its parent process is gone: nothing else would end a rank that hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_rank(task: RankTask, files: RankFiles) -> None:
    try:
        world = _join(task, files)
    except Exception:  # noqa: BLE001 - every error is this rank's outcome
        files.write_outcome(RankOutcome(files.rank, None, f"could not join the others:\n{traceback.format_exc()}"))
        return
    outcome = _run(task, world, files.rank)
    if not outcome.failure:
        outcome = _left_running(files.rank) or outcome
    files.write_outcome(replace(outcome, backends=world.backends))
    if not outcome.failure:
        _disconnect(world)
    elif left_threads():
        # Its process would not end.
        os._exit(1)


def _join(task: RankTask, files: RankFiles) -> ProcessWorld:
    """Connect to the other processes over a file of this launch."""
    ranks = task.mesh.ranks
    store = FileStore(str(task.folder / "store"), ranks)
    device = "cpu"
    if task.backend == "nccl":
        device = f"cuda:{files.rank}"
        torch.cuda.set_device(device)
    _await_all("start", store, task, files)
    distributed.init_process_group(
        task.backend, store=store, rank=files.rank, world_size=ranks, timeout=timedelta(seconds=task.timeout_s)
    )
    # A rank that ends while another still connects would look like the fault of the other.
    _await_all("join", store, task, files)
    topology = task.mesh.topology(files.rank)
    return ProcessWorld(topology, store, device, task.timeout_s, is_recorded=task.is_recorded, note=files.note)


def _await_all(step: str, store: Store, task: RankTask, files: RankFiles) -> None:
    """Wait until all processes have come to this step: a slow start must not count as a silent rank."""
    remaining_s = max(task.ends_at_s - time.time(), 0.0)
    channel = StoreSideChannel(PrefixStore(step, store), step, "world", task.mesh.ranks, remaining_s)
    ComparedCalls(files.rank, channel, files.note).compare(CollectiveCall(GATHER, step, 0), "")


def _run(task: RankTask, world: ProcessWorld, rank: int) -> RankOutcome:
    process = os.getpid()
    try:
        value = task.entry(world, *task.arguments)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 - all are this rank's outcome
        end_if_forked(process)
        world.leave(f"had raised {type(error).__name__}: {error}")
        return raised(rank, error)
    end_if_forked(process)
    world.leave("had ended")
    return RankOutcome(rank, value, "")


def raised(rank: int, error: BaseException) -> RankOutcome:
    """The outcome of a rank that raised this error."""
    # A rank that another one left alone is not the cause. What an assertion is about, the test says.
    causes = () if isinstance(error, RankError) else causes_of(error, ())
    return RankOutcome(
        rank, None, f"{RAISED}\n{''.join(format_visible(error))}", causes, evidence(CALLED.record(), error)
    )


def _left_running(rank: int) -> RankOutcome | None:
    """The failure of a rank that leaves a thread or a process behind; None if it leaves nothing."""
    if left := left_threads():
        return RankOutcome(rank, None, f"left threads running: {', '.join(left)}", (LEFT_RUNNING,))
    if end_running_children():
        return RankOutcome(rank, None, "left a process running: a fork, or a program that it started", (LEFT_PROCESS,))
    return None


def _disconnect(world: ProcessWorld) -> None:
    """Close this process's connections once every rank has ended; leave them open when a rank fails."""
    with suppress(RankError):
        world.await_end()
        distributed.destroy_process_group()
