"""What a cache under test leaves behind in a process of the kit: threads that keep it alive, a fork that goes on."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import thread as pools
from contextlib import suppress
from pathlib import Path

FORKED = "HICACHE_FORKED"
"""The environment variable with the file that says that a fork went on with a run."""


def end_if_forked(process: int) -> None:
    """End this process if it is not `process`, but a fork of it that a cache left behind.

    Both would go on with the run: they would write the same files, and answer on the same pipes.
    """
    if os.getpid() == process:
        return
    if FORKED in os.environ:
        Path(os.environ[FORKED]).touch()
    os._exit(1)


def has_running_child() -> bool:
    """Whether a process that this one started still runs. Takes the exit codes of those that have ended."""
    with suppress(ChildProcessError):
        while True:
            process, _ = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                return True
    return False


def end_running_children() -> bool:
    """Kill the processes that this one started and that still run; whether there were any.

    They would outlive the run, and keep its pipes open.
    """
    is_left = has_running_child()
    for children in Path("/proc/self/task").glob("*/children") if is_left else ():
        for process in map(int, children.read_text(encoding="ascii").split()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    return is_left


def left_threads() -> list[str]:
    """The names of the threads that would keep this process alive at its end.

    Threads of a pool do not: Python ends them.
    """
    return [
        one.name
        for one in threading.enumerate()
        if not one.daemon and one is not threading.main_thread() and one not in pools._threads_queues  # noqa: SLF001
    ]
