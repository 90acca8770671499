"""FileRecency: which file was used least recently, by whatever process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from threading import Lock

Scan = Callable[[], Iterable[tuple[str, os.stat_result]]]
"""All files with their status."""


class FileRecency:
    """The modification time of a file says when it was used last; a heap knows the order of those it has seen.

    What another process makes after a scan is younger than all that the scan saw. So the head of the heap is the oldest
    of all as long as it is older than the scan, and the folder is read again only once everything in it has changed.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._heap: list[tuple[int, str]] = []
        self._scanned_ns = -1
        self._lock = Lock()
        self._last_ns = 0

    def touch(self, file: int | str) -> None:
        """Note that an open file, or one by its path, is used now. No two uses by one process have the same time."""
        with self._lock:
            self._last_ns = now = max(time.time_ns(), self._last_ns + 1)
        os.utime(file, ns=(now, now), follow_symlinks=isinstance(file, int))

    def take_oldest(self) -> tuple[str, os.stat_result] | None:
        """The path and the status of the file that was used least recently. Under the folder's lock."""
        while True:
            if not self._heap or self._heap[0][0] > self._scanned_ns:
                self._rescan()
            if not self._heap:
                return None
            used_ns, path = heappop(self._heap)
            try:
                status = os.lstat(path)
            except FileNotFoundError:
                continue
            if status.st_mtime_ns == used_ns:
                return path, status
            self.put_back(path, status)

    def put_back(self, path: str, status: os.stat_result) -> None:
        """What was taken stays. Under the folder's lock."""
        heappush(self._heap, (status.st_mtime_ns, path))

    def _rescan(self) -> None:
        begin_ns = time.time_ns()
        self._heap = [(status.st_mtime_ns, path) for path, status in self._scan()]
        heapify(self._heap)
        self._scanned_ns = max([begin_ns, *[used_ns for used_ns, _ in self._heap]])
