"""DiskFaults: makes system calls of this thread fail at random, as on a faulty disk."""

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
"""The index of the argument with the buffer, the buffers, or the number of bytes to read."""

_LATER = 0.15
"""The probability that a call fails after the first one that failed."""


class DiskFaults:
    """One faulty disk. `injected`: how many calls failed. Calls of other threads do not fail."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._thread = threading.get_ident()
        self._calls_until_fault = 0
        self.injected = 0

    @contextmanager
    def on(self) -> Iterator[None]:
        """Make one call fail, and perhaps later ones, until the block ends."""
        self._calls_until_fault = self._rng.randrange(12)
        # Some systems lack some of these calls.
        originals = {name: getattr(os, name) for name in (*READS, *WRITES, *OTHERS) if hasattr(os, name)}
        try:
            for name, call in originals.items():
                setattr(os, name, self._faulty(name, call))
            yield
        finally:
            for name, call in originals.items():
                setattr(os, name, call)

    def _faulty(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread or not self._fails_now():
                return call(*arguments, **named)
            self.injected += 1
            if name in READS + WRITES and self._rng.random() < 0.6:  # noqa: PLR2004 - somewhat more often than not
                return self._move_less(name, call, list(arguments))
            raise OSError(self._code(name), f"a fault of {name}")

        return act

    def _fails_now(self) -> bool:
        self._calls_until_fault -= 1
        return self._calls_until_fault == -1 or (self._calls_until_fault < -1 and self._rng.random() < _LATER)

    def _code(self, name: str) -> int:
        if name in READS:
            return errno.EIO
        return self._rng.choice([errno.EIO, errno.ENOSPC, errno.EACCES, errno.EDQUOT])

    def _move_less(self, name: str, call: Callable[..., Any], arguments: list[Any]) -> Any:
        """Transfer a part of the bytes, and return its size or fail."""
        wanted = arguments[_BUFFERS]
        arguments[_BUFFERS] = self._shortened(wanted)
        moved = call(*arguments) if _bytes_of(arguments[_BUFFERS]) else (b"" if name in ("read", "pread") else 0)
        if name in WRITES and self._rng.random() < 0.5:  # noqa: PLR2004 - as often as not
            raise OSError(self._code(name), f"a fault of {name} after some bytes")
        return moved

    def _shortened(self, wanted: Any) -> Any:
        if isinstance(wanted, int):
            return self._rng.randrange(wanted) if wanted else 0
        if isinstance(wanted, Sequence) and not isinstance(wanted, (bytes, bytearray, memoryview)):
            whole = self._rng.randrange(len(wanted)) if wanted else 0
            return [*wanted[:whole], *([self._shortened(wanted[whole])] if wanted else [])]
        view = memoryview(wanted).cast("B")
        return view[: self._rng.randrange(len(view))] if len(view) else view


def _bytes_of(wanted: Any) -> int:
    if isinstance(wanted, int):
        return wanted
    views = wanted if isinstance(wanted, list) else [wanted]
    return sum(memoryview(view).nbytes for view in views)
