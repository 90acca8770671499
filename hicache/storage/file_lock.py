"""FileLock: a lock among threads and processes, with a deadline; holders: the processes that hold a lock of a file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ETIMEDOUT
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from pathlib import Path
from threading import Lock

LOCK_TIMEOUT_S = 10.0
"""How long a lock of another process is waited for. A process that is stopped holds its locks."""

MAX_LOCK_TIMEOUT_S = 3600.0

HURRY = 100
"""After a wait that was in vain, the next ones are shorter by this factor, until the lock was taken once."""

POLL_S = 0.001

LOCKS = Path("/proc/locks")


class FileLock:
    """A lock of an open file, against all other threads and processes. The system releases that of a dead process."""

    def __init__(self, file: int, timeout_s: float) -> None:
        self._file = file
        self._timeout_s = timeout_s
        self._wait_s = timeout_s
        self._threads = Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises TimeoutError, which is an OSError and names the holders, when the deadline is over."""
        if not self._threads.acquire(timeout=self._timeout_s):
            raise TimeoutError(ETIMEDOUT, f"a thread of this process holds the lock for more than {self._timeout_s} s")
        try:
            self._take()
            try:
                yield
            finally:
                flock(self._file, LOCK_UN)
        finally:
            self._threads.release()

    def _take(self) -> None:
        end = time.monotonic() + self._wait_s
        while not self._is_taken():
            if time.monotonic() >= end:
                waited_s, self._wait_s = self._wait_s, self._timeout_s / HURRY
                who = holders(os.fstat(self._file))
                raise TimeoutError(ETIMEDOUT, f"{who} holds the lock of the folder; waited {waited_s} s for it")
            time.sleep(POLL_S)
        self._wait_s = self._timeout_s

    def _is_taken(self) -> bool:
        with suppress(BlockingIOError):
            flock(self._file, LOCK_EX | LOCK_NB)
            return True
        return False


def holders(status: os.stat_result) -> str:
    """The processes that hold a lock of a file, as far as the system tells, for a message."""
    pids = set[int]()
    with suppress(OSError):
        for line in LOCKS.read_text().splitlines():
            words = line.split()
            # A line with an arrow is of a process that waits.
            if words[1] != "->" and words[5].endswith(f":{status.st_ino}"):
                pids.add(int(words[4]))
    return f"process {', '.join(map(str, sorted(pids)))}" if pids else "another process"
