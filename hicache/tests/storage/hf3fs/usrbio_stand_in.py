"""UsrbioStandIn: a stand-in of the module `hf3fs_fuse.io`, for tests. It is not the library, and no 3FS is behind it.

It has the functions that are used, with the arguments and the results of the library, and moves the bytes by system
calls. What the library does not check and a daemon would do wrong, it asserts. Results come in the reverse order.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from weakref import WeakSet


class IoVector:
    """Shared memory that a daemon knows, or a slice of it. `result`, `userdata`: of the move that it was used for."""

    def __init__(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.result = 0
        self.userdata: object = None

    def __getitem__(self, part: slice) -> IoVector:
        assert part.step in (None, 1), f"slices have no step, got {part}"
        return IoVector(self.buffer[part])


class IoRing:
    """A ring for one direction. `prepared`: moves that were not yet waited for."""

    def __init__(self, stand_in: UsrbioStandIn, entries: int, *, for_read: bool) -> None:
        self._stand_in = stand_in
        self._entries = entries
        self._for_read = for_read
        self._is_submitted = False
        self.prepared: deque[tuple[IoVector, int, int]] = deque()

    def prepare(self, iov: IoVector, read: bool, fd: int, off: int, userdata: object = None) -> IoRing:
        """Add a move."""
        assert read == self._for_read, f"a ring has one direction: for_read={self._for_read}, got read={read}"
        assert fd in self._stand_in.registered, f"file {fd} is not registered"
        assert len(self.prepared) < self._entries, f"the ring has {self._entries} entries"
        iov.userdata = userdata
        self.prepared.append((iov, fd, off))
        return self

    def submit(self) -> IoRing:
        """Tell the daemon of the moves."""
        self._is_submitted = True
        return self

    def wait(
        self, *, max_results: int = 0, min_results: int = 0, timeout: timedelta | None = None
    ) -> Sequence[IoVector]:
        """The moves that have ended; fewer than `min_results` after the timeout."""
        assert self._is_submitted, "nothing was submitted"
        assert timeout is not None, "without a timeout a daemon that is gone would be waited for without end"
        wanted = max(max_results, min_results)
        lost = min(self._stand_in.lost, wanted)
        self._stand_in.submissions.append(len(self.prepared))
        done = [self._moved(*self.prepared.popleft()) for _ in range(wanted - lost)]
        return done[::-1]

    def end_late(self) -> int:
        """Do the moves that were given up; returns how many."""
        late = len(self.prepared)
        while self.prepared:
            self._moved(*self.prepared.popleft())
        return late

    def _moved(self, iov: IoVector, fd: int, off: int) -> IoVector:
        try:
            move = os.preadv if self._for_read else os.pwritev
            iov.result = min(move(fd, [iov.buffer], off), self._stand_in.most_bytes)
        except OSError as error:
            iov.result = -(error.errno or 0)
        return iov


class UsrbioStandIn:
    """Stands in for `hf3fs_fuse.io` where 3FS is mounted at a folder.

    `registered`: the descriptors that are registered. `memories`: the names of all shared memory. `submissions`: how
    many moves each had. `lost`: how many moves of a submission do not end from now on. `most_bytes`: how many bytes of
    a move are reported at most. `rings`: those that are in use.
    """

    def __init__(self, mount_point: Path) -> None:
        self._mount_point = mount_point
        self.registered = set[int]()
        self.memories: list[str] = []
        self.submissions: list[int] = []
        self.lost = 0
        self.most_bytes = 1 << 62
        self.rings = WeakSet[IoRing]()

    def extract_mount_point(self, path: str) -> str | None:
        """Where 3FS is mounted that has this file."""
        return str(self._mount_point) if Path(path).is_relative_to(self._mount_point) else None

    def register_fd(self, fd: int) -> None:
        """Register a file."""
        assert fd not in self.registered, f"file {fd} is registered already"
        os.fstat(fd)
        self.registered.add(fd)

    def deregister_fd(self, fd: int) -> None:
        """Forget a file, which is still open."""
        os.fstat(fd)
        self.registered.remove(fd)

    def make_iovec(self, shm: SharedMemory, hf3fs_mount_point: str, block_size: int = 0, numa: int = -1) -> IoVector:
        """Make shared memory known."""
        assert hf3fs_mount_point == str(self._mount_point), f"nothing is mounted at {hf3fs_mount_point}"
        assert (block_size, numa) == (0, -1), f"the defaults are expected, got {block_size} {numa}"
        assert shm.buf is not None, f"the memory {shm.name} is closed"
        self.memories.append(shm.name)
        return IoVector(shm.buf)

    def make_ioring(self, hf3fs_mount_point: str, entries: int, for_read: bool = True, io_depth: int = 0) -> IoRing:
        """Make a ring."""
        assert hf3fs_mount_point == str(self._mount_point), f"nothing is mounted at {hf3fs_mount_point}"
        assert io_depth == 0, f"the default is expected, got {io_depth}"
        ring = IoRing(self, entries, for_read=for_read)
        self.rings.add(ring)
        return ring
