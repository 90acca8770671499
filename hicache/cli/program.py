"""The commands that run a module of Python in a process where the current folder hides no other module."""

from __future__ import annotations

import sys

INTERRUPTIBLE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
"""Lets a process end at SIGINT, also where a shell lets its background jobs, and all that they start, ignore it."""

START = (
    # Before any other import: with -c and -m the current folder comes first, and pytest imports readline.
    "import sys; sys.path[:] = [path for path in sys.path if path]; del sys.argv[0]; "
    f"{INTERRUPTIBLE}import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""For the environment: the processes of such a process, such as pytest's workers, do the same from Python 3.11 on."""


def program(module: str, *arguments: str) -> list[str]:
    """As `python -m module`, without the current folder. SIGINT interrupts it."""
    return [sys.executable, "-c", START, module, *arguments]
