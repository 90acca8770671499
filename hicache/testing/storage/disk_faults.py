"""DiskFaults: a disk that fails now and then, for what this thread asks of the operating system."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

READS = ("read", "readv", "pread", "preadv")
WRITES = ("write", "writev", "pwrite", "pwritev")
OTHERS = (
    *("open", "fsync", "fdatasync", "ftruncate", "truncate", "posix_fallocate", "mkdir", "makedirs"),
    *("replace", "rename", "link", "symlink", "unlink", "remove", "listdir", "scandir", "stat", "lstat", "utime"),
)
_BUFFERS = 1
"""Where each call that moves bytes takes its buffer, or its buffers, or how many bytes it reads."""

_LATER = 0.15
"""How likely a call fails after the first one did."""


class DiskFaults:
    """One disk. `injected`: how often it failed. What other threads ask of it is done."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._thread = threading.get_ident()
        self._patient_for = 0
        self.injected = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Fail at some call, and perhaps at later ones, until the block ends."""
        self._patient_for = self._dice.randrange(12)
        # Not all systems have all calls.
        sound = {name: getattr(os, name) for name in (*READS, *WRITES, *OTHERS) if hasattr(os, name)}
        try:
            for name, call in sound.items():
                setattr(os, name, self._faulty(name, call))
            yield
        finally:
            for name, call in sound.items():
                setattr(os, name, call)

    def _faulty(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread or not self._is_time():
                return call(*arguments, **named)
            self.injected += 1
            if name in READS + WRITES and self._dice.random() < 0.6:  # noqa: PLR2004 - somewhat more often than not
                return self._move_less(name, call, list(arguments))
            raise OSError(self._code(name), f"a fault of {name}")

        return act

    def _is_time(self) -> bool:
        self._patient_for -= 1
        return self._patient_for == -1 or (self._patient_for < -1 and self._dice.random() < _LATER)

    def _code(self, name: str) -> int:
        if name in READS:
            return errno.EIO
        return self._dice.choice([errno.EIO, errno.ENOSPC, errno.EACCES, errno.EDQUOT])

    def _move_less(self, name: str, call: Callable[..., Any], arguments: list[Any]) -> Any:
        """Move a part of the bytes, and say so; or fail after it."""
        wanted = arguments[_BUFFERS]
        arguments[_BUFFERS] = self._shortened(wanted)
        moved = call(*arguments) if _bytes_of(arguments[_BUFFERS]) else (b"" if name in ("read", "pread") else 0)
        if name in WRITES and self._dice.random() < 0.5:  # noqa: PLR2004 - as often as not
            raise OSError(self._code(name), f"a fault of {name} after some bytes")
        return moved

    def _shortened(self, wanted: Any) -> Any:
        if isinstance(wanted, int):
            return self._dice.randrange(wanted) if wanted else 0
        if isinstance(wanted, Sequence) and not isinstance(wanted, (bytes, bytearray, memoryview)):
            whole = self._dice.randrange(len(wanted)) if wanted else 0
            return [*wanted[:whole], *([self._shortened(wanted[whole])] if wanted else [])]
        view = memoryview(wanted).cast("B")
        return view[: self._dice.randrange(len(view))] if len(view) else view


def _bytes_of(wanted: Any) -> int:
    if isinstance(wanted, int):
        return wanted
    views = wanted if isinstance(wanted, list) else [wanted]
    return sum(memoryview(view).nbytes for view in views)
