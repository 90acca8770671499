"""Doing: what a worker process does now, in a file that outlives it, so that its sudden end can be explained."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from pathlib import Path

MAX_OUTPUT = 50_000_000
"""How much a test may print, in bytes: pytest keeps it in a file."""

_POLL_S = 0.2
_VERB = slice(0, 256)
_REASON = slice(256, 512)


class Doing:
    """What one process does. It says nothing until a file is opened."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None

    def open(self, path: Path) -> None:
        """Write to this file from now on, and end the process when a test prints too much."""
        path.write_bytes(bytes(_REASON.stop))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        threading.Thread(target=self._watch, name="hicache-output", daemon=True).start()

    def call(self, verb: str) -> None:
        """Say which verb of the adapter is being called; empty for none."""
        self._write(_VERB, verb)

    def _write(self, place: slice, text: str) -> None:
        if self._map is not None:
            size = place.stop - place.start
            self._map[place] = text.encode(errors="replace")[:size].ljust(size, b"\0")

    def _watch(self) -> None:
        never = threading.Event()
        while not never.wait(_POLL_S):
            printed = os.fstat(1)
            if stat.S_ISREG(printed.st_mode) and printed.st_size > MAX_OUTPUT:
                self._write(_REASON, f"more than {MAX_OUTPUT:,} characters of output")
                os._exit(1)


DOING = Doing()
"""That of this process."""


def read_doing(path: Path) -> tuple[str, str]:
    """The verb that a process was calling when it ended, and the reason for which it was ended; each may be empty."""
    if not path.exists():
        return "", ""
    known = path.read_bytes()
    return _text(known[_VERB]), _text(known[_REASON])


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
