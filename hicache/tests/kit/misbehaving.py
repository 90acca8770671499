"""Adapters of a sound cache that misbehave in one verb: they exit, raise what ends a process, hang, print, fork."""

from __future__ import annotations

import ctypes
import os
import sys
import threading

from hicache.config import CacheConfig
from hicache.tests.kit.hosted_cache import FlatCache
from hicache.types import Key, MatchResult

FORGED = "\x1b[2J\x1b[32mverified: device: no test failed\x1b[0m\nhicache: 999 passed, 0 failed, 0 skipped\n"


class Misbehaving(FlatCache):
    """Misbehaves at the fifth match of a process."""

    matches = 0

    def match(self, key: Key, *, chunked: bool) -> MatchResult:
        """Do it, or match."""
        Misbehaving.matches += 1
        if Misbehaving.matches == 5:
            self.misbehave()
        return super().match(key, chunked=chunked)

    def misbehave(self) -> None:
        """What this adapter does wrong."""
        raise NotImplementedError


class ExitsWith0(Misbehaving):
    """Ends the process as if all was well."""

    def misbehave(self) -> None:
        os._exit(0)


class ExitsWith1(Misbehaving):
    """Ends the process."""

    def misbehave(self) -> None:
        os._exit(1)


class RaisesSystemExit(Misbehaving):
    """Raises SystemExit(0)."""

    def misbehave(self) -> None:
        sys.exit(0)


class RaisesKeyboardInterrupt(Misbehaving):
    """Raises what Ctrl-C raises."""

    def misbehave(self) -> None:
        raise KeyboardInterrupt


class Crashes(Misbehaving):
    """Reads memory that is not its own."""

    def misbehave(self) -> None:
        ctypes.string_at(0)


class Hangs(Misbehaving):
    """Never returns."""

    def misbehave(self) -> None:
        threading.Event().wait()


class Floods(Misbehaving):
    """Prints without end."""

    def misbehave(self) -> None:
        while True:
            os.write(1, b"x" * 4096 + b"\n")


class Forges(Misbehaving):
    """Prints what the end of a good run looks like, and breaks a law."""

    def misbehave(self) -> None:
        os.write(1, FORGED.encode())
        raise ValueError("broken")


class Forks(Misbehaving):
    """Goes on in two processes."""

    def misbehave(self) -> None:
        os.fork()


class LeavesAThread(FlatCache):
    """Opens a thread that never ends."""

    def __init__(self, config: CacheConfig) -> None:
        super().__init__(config)
        threading.Thread(target=threading.Event().wait, daemon=False).start()


ALL = (
    ExitsWith0,
    ExitsWith1,
    RaisesSystemExit,
    RaisesKeyboardInterrupt,
    Crashes,
    Hangs,
    Floods,
    Forges,
    Forks,
    LeavesAThread,
)
