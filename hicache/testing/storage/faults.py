"""The faults of a disk: system calls of a thread that fail at random, and files that are damaged."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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

_SHARE = 16
"""The number of bytes of a page that are searched for."""


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
        def faulty(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != self._thread or not self._fails_now():
                return call(*arguments, **named)
            self.injected += 1
            if name in READS + WRITES and self._rng.random() < 0.6:  # noqa: PLR2004 - somewhat more often than not
                return self._move_less(name, call, list(arguments))
            raise OSError(self._code(name), f"a fault of {name}")

        return faulty

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


@dataclass(frozen=True, slots=True)
class Found:
    """The position of a page in a file."""

    path: Path
    offset: int
    size: int


def files_of(directory: Path) -> list[Path]:
    """All files below a folder, sorted."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def disk_bytes(directory: Path) -> int:
    """The disk usage of the files below a folder, in bytes."""
    return sum(path.stat().st_blocks * 512 for path in files_of(directory))


def find_page(directory: Path, page: bytes) -> Found | None:
    """The position of the page's first bytes in a file below the folder; None when no file has them."""
    for path in files_of(directory):
        offset = path.read_bytes().find(page[:_SHARE])
        if offset >= 0:
            return Found(path, offset, len(page))
    return None


def _flip(found: Found) -> None:
    with found.path.open("r+b") as file:
        file.seek(found.offset + found.size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def _blank(found: Found) -> None:
    with found.path.open("r+b") as file:
        file.seek(found.offset + found.size // 2)
        file.write(bytes(found.size - found.size // 2))


def _truncate(found: Found) -> None:
    with found.path.open("r+b") as file:
        file.truncate(found.offset + found.size // 2)


def _lengthen(found: Found) -> None:
    with found.path.open("ab") as file:
        file.write(b"\x01" * 100)


def _empty(found: Found) -> None:
    found.path.write_bytes(b"")


def _remove(found: Found) -> None:
    found.path.unlink()


DAMAGES: Mapping[str, Callable[[Found], None]] = {
    "a flipped bit": _flip,
    "a blank half": _blank,
    "a file that ends within the page": _truncate,
    "a file that is too long": _lengthen,
    "an empty file": _empty,
    "a file that is gone": _remove,
}
"""Ways to corrupt a file that holds a page."""
