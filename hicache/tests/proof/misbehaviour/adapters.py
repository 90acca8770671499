"""The reference cache, misbehaving in one verb: `adapters:hang_in_match` hangs at each match.

The class of each kind and verb is made when it is asked for by its name, as every process of a run does. Where the
variable MISBEHAVED names a file, the file is made when the misbehaviour begins.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hicache.testing.adapter import CacheAdapter
from hicache.testing.caches.reference import ReferenceAdapter

MISBEHAVED = "MISBEHAVED"
"""The environment variable with the file that says that the verb was called."""

OPEN = "open"
"""The verb that opens a cache, which is `__init__`."""


def _segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _hang() -> None:
    threading.Event().wait()


def _flood() -> None:
    while True:
        os.write(1, b"x" * 4095 + b"\n")


def _leave_a_thread() -> None:
    if not any(one.name == "left behind" for one in threading.enumerate()):
        threading.Thread(target=threading.Event().wait, name="left behind", daemon=False).start()


def _fork() -> None:
    if not _forked:
        _forked.append(os.getpid())
        os.fork()


_forked: list[int] = []

KINDS: Mapping[str, Callable[[], None]] = {
    "exit0": lambda: os._exit(0),
    "exit1": lambda: os._exit(1),
    "system_exit": lambda: sys.exit(0),
    "keyboard_interrupt": _interrupt,
    "segfault": _segfault,
    "hang": _hang,
    "flood": _flood,
    "thread": _leave_a_thread,
    "fork": _fork,
}
"""What an adapter does wrong, by name. A thread is left once in each process, and each process forks once."""


@cache
def misbehaving(kind: str, verb: str) -> type[CacheAdapter]:
    """The adapter class of this kind and verb."""
    method, misbehave = "__init__" if verb == OPEN else verb, KINDS[kind]
    inherited: Callable[..., Any] = getattr(ReferenceAdapter, method)

    def call(self: CacheAdapter, *arguments: Any, **named: Any) -> Any:
        if MISBEHAVED in os.environ:
            Path(os.environ[MISBEHAVED]).touch()
        misbehave()
        return inherited(self, *arguments, **named)

    call.__name__ = method
    return type(f"{kind}_in_{verb}", (ReferenceAdapter,), {"__module__": __name__, method: call})


def __getattr__(name: str) -> type[CacheAdapter]:
    kind, separator, verb = name.partition("_in_")
    if not separator or kind not in KINDS:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return misbehaving(kind, verb)
