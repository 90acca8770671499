"""Launch: starts a process for each rank of a mesh, as torchrun does, and says in time what each came to."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hicache.testing.ranks.mesh import Mesh
from hicache.testing.ranks.outcome import Desk, Outcome, RanksFailedError
from hicache.testing.ranks.worker import Task, work

START_METHOD = "forkserver"
"""Its server has torch loaded, so that a process costs a fork; it asks for no GPU, so that its children may."""

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that torchrun's agent takes over, and does not give back."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How processes are started. Each launch needs an empty `folder` of its own.

    `backend`: gloo or nccl. `deadline_s`: for all of it; what is not over by then is killed. `timeout_s`: how long a
    rank is waited for in a collective. `is_recorded`: calls are compared before they are entered.
    """

    mesh: Mesh
    backend: str
    folder: Path
    deadline_s: float
    timeout_s: float
    is_recorded: bool

    def values(self, entry: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `entry(world, *arguments)` returns on each rank, by rank; entry is found by its module and name.

        Raises RanksFailedError, which holds the traceback of every rank that did not return, or says where it was.
        """
        outcomes = self.outcomes(entry, *arguments)
        if any(outcome.failure for outcome in outcomes):
            raise RanksFailedError(outcomes)
        return [outcome.value for outcome in outcomes]

    def outcomes(self, entry: Callable[..., Any], *arguments: Any) -> list[Outcome]:
        """The same, with what became of each rank in the place of an error."""
        ends_at_s = time.time() + self.deadline_s
        task = Task(entry, arguments, self.mesh, self.backend, self.folder, self.timeout_s, ends_at_s, self.is_recorded)
        exit_codes = self._run(task)
        return [self._outcome(Desk(self.folder, rank), exit_codes.get(rank)) for rank in range(self.mesh.ranks)]

    def _run(self, task: Task) -> dict[int, int]:
        """Run all processes to their end, or to the end of their time; the exit codes of those that ended badly."""
        # Of every step that the agent takes it tells a log that nobody reads.
        logging.getLogger("torchelastic-events-null").setLevel(logging.WARNING)
        multiprocessing.get_context(START_METHOD).set_forkserver_preload(_needed(task))
        with _signals_kept(), _killed_at(self.deadline_s):
            try:
                elastic_launch(self._config(), work)(task)
            except ChildFailedError as error:
                return {rank: failure.exitcode for rank, failure in error.failures.items()}
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

    def _outcome(self, desk: Desk, exit_code: int | None) -> Outcome:
        found = desk.outcome()
        if found is not None:
            return found
        last = desk.last_note()
        where = f", in {last}" if last else ""
        stack = desk.stack.read_text(encoding="utf-8") if desk.stack.exists() else ""
        if stack:
            how = f"had not ended within {self.deadline_s:g} s{where}:\n{stack}"
        else:
            how = f"ended with code {exit_code}{where}, without a word:\n{self._words(desk.rank)}"
        return Outcome(desk.rank, None, how)

    def _words(self, rank: int) -> str:
        """What a rank wrote to its standard error."""
        logs = (self.folder / "logs").rglob(f"{rank}/stderr.log")
        return "".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)


def _needed(task: Task) -> list[str]:
    """The modules that every process imports; those of a cache only where none can have asked for a GPU meanwhile."""
    classes = [one.__module__ for one in task.arguments if isinstance(one, type)] if task.backend == "gloo" else []
    return ["torch.distributed", work.__module__, task.entry.__module__, *classes]


@contextmanager
def _signals_kept() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _killed_at(deadline_s: float) -> Iterator[None]:
    """Kill the children that are started meanwhile when the time is over."""
    before = set(multiprocessing.active_children())

    def kill() -> None:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()

    timer = threading.Timer(deadline_s, kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
