"""Launch: starts a process for each rank of a mesh, and collects each rank's outcome in time."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from hicache.testing.plugin.failures import read_doing
from hicache.testing.process_starts import EVENT as PROCESS_STARTED
from hicache.testing.ranks import preloaded
from hicache.testing.ranks.outcome import RankFiles, RankOutcome, RanksFailedError
from hicache.testing.ranks.seen import SEEN
from hicache.testing.ranks.worker import RankTask, work
from hicache.testing.ranks.world import Mesh

START_METHOD: Final = "forkserver"
"""The fork server has torch imported, so that a process costs a fork; it does not initialise CUDA, so children can."""

ENDED = "the process of a rank ended"
"""The cause of the failure of a rank whose process left no outcome."""

SILENT = "a rank did not end in time"
"""The cause of the failure of a rank that had to be killed."""

GRACE_S = 30.0
"""How long the others may go on after a process was killed or crashed: they wait for it, and then say so."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the processes are started. Each launch needs an empty `folder` of its own.

    A process has the variables of torchrun that name its rank: RANK, LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE.

    `backend`: gloo or nccl. `deadline_s`: for the whole launch; processes that still run then are killed. `timeout_s`:
    how long a collective waits for a rank. `is_recorded`: calls are compared before they are entered.
    """

    mesh: Mesh
    backend: str
    folder: Path
    deadline_s: float
    timeout_s: float
    is_recorded: bool

    def again(self, number: int) -> Launch:
        """The same launch in a folder of its own, for a test that starts its ranks several times."""
        folder = self.folder / str(number)
        folder.mkdir()
        return replace(self, folder=folder)

    def values(self, entry: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The result of `entry(world, *arguments)` of each rank, by rank; entry is found by its module and name.

        Raises RanksFailedError, with the traceback of every rank that did not return, or the place where it was.
        """
        outcomes = self.outcomes(entry, *arguments)
        if any(outcome.failure for outcome in outcomes):
            raise RanksFailedError(outcomes)
        return [outcome.value for outcome in outcomes]

    def outcomes(self, entry: Callable[..., Any], *arguments: Any) -> list[RankOutcome]:
        """Like `values`, but returns the outcome of each rank instead of raising an error."""
        ends_at_s = time.time() + self.deadline_s
        task = RankTask(
            entry, arguments, self.mesh, self.backend, self.folder, self.timeout_s, ends_at_s, self.is_recorded
        )
        exit_codes = self._run(task)
        outcomes = [self._outcome(RankFiles(self.folder, rank), code) for rank, code in enumerate(exit_codes)]
        SEEN.add(outcome.backends for outcome in outcomes)
        return outcomes

    def _run(self, task: RankTask) -> list[int | None]:
        """Run all processes until they end or have to be killed. Returns their exit codes; None: it was killed."""
        context = multiprocessing.get_context(START_METHOD)
        context.set_forkserver_preload(_needed(task))
        processes = [context.Process(target=work, args=(rank, task)) for rank in range(self.mesh.ranks)]
        end_s = time.monotonic() + self.deadline_s
        with _started(processes):
            _wait_for(processes, end_s)
            return [process.exitcode for process in processes]

    def _outcome(self, files: RankFiles, exit_code: int | None) -> RankOutcome:
        found = files.outcome()
        if found is not None:
            return found
        last = files.last_note()
        where = f", in {last}" if last else ""
        stack = files.stack.read_text(encoding="utf-8") if files.stack.exists() else ""
        if stack:
            how = f"had not ended within {self.deadline_s:g} s{where}:\n{stack}"
            return RankOutcome(files.rank, None, how, (SILENT,))
        if exit_code is None:
            return RankOutcome(files.rank, None, f"had not ended when it was killed{where}", (SILENT,))
        how = f"ended with code {exit_code}{where} and left no outcome:\n{files.words()}"
        _, reason = read_doing(files.doing)
        return RankOutcome(files.rank, None, how, (f"{ENDED}: {reason}" if reason else ENDED,))


def _needed(task: RankTask) -> list[str]:
    """The modules that the fork server imports; a cache's only with gloo, as its import may initialise CUDA.

    The server imports them once, at the first launch. A later launch may have its entry in another module of tests.
    """
    classes = [one.__module__ for one in task.arguments if isinstance(one, type)] if task.backend == "gloo" else []
    return [preloaded.__name__, work.__module__, task.entry.__module__, *classes]


@contextmanager
def _started(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """The processes run in the block. Those that still run at its end are killed."""
    try:
        for rank, process in enumerate(processes):
            sys.audit(PROCESS_STARTED, rank)
            process.start()
        yield
    finally:
        begun = [process for process in processes if process.pid is not None]
        for process in begun:
            process.kill()
        for process in begun:
            process.join()


def _wait_for(processes: Sequence[BaseProcess], end_s: float) -> None:
    """Wait until all have ended, but no longer than until `end_s`, and GRACE_S after one was killed or crashed.

    `end_s`: a time of `time.monotonic`.
    """
    has_failed = False
    while (running := [one for one in processes if one.is_alive()]) and (left_s := end_s - time.monotonic()) > 0:
        if not has_failed and any(one.exitcode for one in processes):
            has_failed, end_s = True, min(end_s, time.monotonic() + GRACE_S)
            continue
        wait([one.sentinel for one in running], left_s)
