"""Launch: starts a process for each rank of a mesh, as torchrun does, and collects each rank's outcome in time."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hicache.testing.plugin.doing import read_doing
from hicache.testing.process_starts import EVENT as PROCESS_STARTED
from hicache.testing.ranks import preloaded
from hicache.testing.ranks.outcome import Outcome, RankFiles, RanksFailedError
from hicache.testing.ranks.worker import Task, work
from hicache.testing.ranks.world import Mesh

START_METHOD = "forkserver"
"""The fork server has torch imported, so that a process costs a fork; it does not initialise CUDA, so children can."""

ENDED = "the process of a rank ended"
"""The cause of the failure of a rank whose process left no outcome."""

SILENT = "a rank did not end in time"
"""The cause of the failure of a rank that had to be killed."""

_WAKE = signal.SIGUSR1
"""The signal that ends the agent's wait."""

_AGENT = "torch.distributed.elastic.agent"
"""The package of torchrun's agent: its loop, in which it looks whether processes have ended."""

_AGENT_S = 5.0
"""How long the agent has to see that a process ended."""

_POLL_S = 0.25

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals whose handlers torchrun's agent replaces and does not restore."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the processes are started. Each launch needs an empty `folder` of its own.

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

    def outcomes(self, entry: Callable[..., Any], *arguments: Any) -> list[Outcome]:
        """Like `values`, but returns the outcome of each rank instead of raising an error."""
        ends_at_s = time.time() + self.deadline_s
        task = Task(entry, arguments, self.mesh, self.backend, self.folder, self.timeout_s, ends_at_s, self.is_recorded)
        exit_codes = self._run(task)
        return [self._outcome(RankFiles(self.folder, rank), exit_codes.get(rank)) for rank in range(self.mesh.ranks)]

    def _run(self, task: Task) -> dict[int, int]:
        """Run all processes until they end or the deadline; returns the exit codes of those that failed."""
        # The agent logs each of its steps to a logger that nothing reads.
        logging.getLogger("torchelastic-events-null").setLevel(logging.WARNING)
        multiprocessing.get_context(START_METHOD).set_forkserver_preload(_needed(task))
        for rank in range(self.mesh.ranks):
            sys.audit(PROCESS_STARTED, rank)
        ranks = [RankFiles(self.folder, rank) for rank in range(self.mesh.ranks)]
        try:
            with _signals_kept(), _watched(self.deadline_s, ranks):
                elastic_launch(self._config(), work)(task)
        except ChildFailedError as error:
            return {rank: failure.exitcode for rank, failure in error.failures.items()}
        except _AllOverError:
            return {}
        return {}

    def _config(self) -> LaunchConfig:
        return LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=self.mesh.ranks,
            run_id=self.folder.name,
            rdzv_backend="c10d",
            rdzv_endpoint=str(self.folder / "rendezvous"),
            rdzv_configs={"store_type": "file", "timeout": int(self.deadline_s) + 1},
            max_restarts=0,
            monitor_interval=0.02,
            start_method=START_METHOD,
            logs_specs=DefaultLogsSpecs(log_dir=str(self.folder / "logs"), redirects=Std.ALL),
            local_addr="localhost",
        )

    def _outcome(self, files: RankFiles, exit_code: int | None) -> Outcome:
        found = files.outcome()
        if found is not None:
            return found
        last = files.last_note()
        where = f", in {last}" if last else ""
        stack = files.stack.read_text(encoding="utf-8") if files.stack.exists() else ""
        if stack:
            how = f"had not ended within {self.deadline_s:g} s{where}:\n{stack}"
            return Outcome(files.rank, None, how, (SILENT,))
        ended = "ended" if exit_code is None else f"ended with code {exit_code}"
        how = f"{ended}{where} and left no outcome:\n{self._words(files.rank)}"
        _, reason = read_doing(files.doing)
        return Outcome(files.rank, None, how, (f"{ENDED}: {reason}" if reason else ENDED,))

    def _words(self, rank: int) -> str:
        """The standard error of a rank."""
        logs = (self.folder / "logs").rglob(f"{rank}/stderr.log")
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)


def _needed(task: Task) -> list[str]:
    """The modules that the fork server imports; a cache's only with gloo, as its import may initialise CUDA.

    The server imports them once, at the first launch. A later launch may have its entry in another module of tests.
    """
    classes = [one.__module__ for one in task.arguments if isinstance(one, type)] if task.backend == "gloo" else []
    return [preloaded.__name__, work.__module__, task.entry.__module__, *classes]


@contextmanager
def _signals_kept() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _AllOverError(Exception):
    """Every rank is over, and the agent still waits for one whose process ended."""


@contextmanager
def _watched(deadline_s: float, ranks: Sequence[RankFiles]) -> Iterator[None]:
    """Kill the children that are started inside the block when the deadline passes.

    torchrun's agent waits without end for a process that ended with code 0 and returned nothing, as `os._exit(0)` does.
    Raises _AllOverError in this thread, which is the main one, when it is in its loop and every other rank has its
    outcome.
    """
    before, over, main = set(multiprocessing.active_children()), threading.Event(), threading.get_ident()

    def watch() -> None:
        end_s, is_late, over_s = time.monotonic() + deadline_s, False, 0.0
        while not over.wait(_POLL_S):
            if not is_late and time.monotonic() >= end_s:
                is_late = True
                for child in set(multiprocessing.active_children()) - before:
                    child.kill()
            is_over = all(rank.is_over() for rank in ranks) and any(rank.is_lost() for rank in ranks)
            over_s = over_s + _POLL_S if is_over else 0.0
            if over_s >= _AGENT_S:
                signal.pthread_kill(main, _WAKE)

    def wake(_: int, frame: FrameType | None) -> None:
        # The agent may have seen the end, and be slow: in the middle of an import for example, which must be finished.
        if frame is not None and str(frame.f_globals.get("__name__")).startswith(_AGENT):
            over.set()  # Once: what the agent cleans up now must be finished too.
            raise _AllOverError

    previous = signal.signal(_WAKE, wake)
    watcher = threading.Thread(target=watch, name="hicache-ranks", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(_WAKE, signal.SIG_DFL if previous is None else previous)
