"""UsrbioFile: a file of 3FS, read and written through rings of shared memory, which its library `hf3fs_fuse` gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from errno import EIO, ETIMEDOUT
from importlib import import_module
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from threading import Lock
from typing import Any

from hicache.storage.hf3fs.file_io import Move
from hicache.storage.page_io import open_regular

LIBRARY = "hf3fs_fuse.io"
"""The module of the package hf3fs_py_usrbio that is used."""

ENTRIES = 8
"""How many pages are under way at a time in each direction. Each has a slot of shared memory."""

TIMEOUT_S = 60.0
"""How long the pages of one submission are waited for."""


def usrbio_of(folder: Path) -> tuple[Any, str] | None:
    """The library and the mount point of 3FS that a folder lies in, None without the library or outside of 3FS."""
    try:
        library = import_module(LIBRARY)
    except ImportError:
        return None
    mount_point = library.extract_mount_point(str(folder))
    return (library, mount_point) if mount_point else None


class _Ring:
    """One direction of a file: a ring, and shared memory with a slot for each of its entries.

    The daemon of 3FS moves bytes between the file and the slots, so that each byte is copied once more here.
    """

    def __init__(self, library: Any, mount_point: str, slot_bytes: int, *, is_read: bool) -> None:
        self._is_read = is_read
        self._slot_bytes = slot_bytes
        self._lock = Lock()
        self._is_lost = False
        self._memory = SharedMemory(size=ENTRIES * slot_bytes, create=True)
        assert self._memory.buf is not None, "memory that was just made is open"
        self._buffer = self._memory.buf
        try:
            self._iovec = library.make_iovec(self._memory, mount_point)
            self._ring = library.make_ioring(mount_point, ENTRIES, for_read=is_read)
        except BaseException:
            self.close()
            raise

    def move(self, file: int, moves: Sequence[Move]) -> list[int]:
        """Move up to ENTRIES pages in one submission: the bytes of each, or the negative error number."""
        with self._lock:
            if self._is_lost:
                return [-EIO] * len(moves)
            try:
                return self._moved(file, moves)
            except OSError as error:
                # Some may be under way, and would move bytes of later pages.
                self._is_lost = True
                return [-(error.errno or EIO)] * len(moves)

    def close(self) -> None:
        """Free the ring and its memory."""
        self._iovec = self._ring = None
        self._memory.close()
        self._memory.unlink()

    def _moved(self, file: int, moves: Sequence[Move]) -> list[int]:
        for number, move in enumerate(moves):
            begin, size = number * self._slot_bytes, sum(piece.nbytes for piece in move.pieces)
            if not self._is_read:
                self._fill(begin, move)
            self._ring.prepare(self._iovec[begin : begin + size], self._is_read, file, move.offset, userdata=number)
        done = self._ring.submit().wait(min_results=len(moves), timeout=timedelta(seconds=TIMEOUT_S))
        # In the order in which they ended.
        results = {one.userdata: one.result for one in done}
        self._is_lost = len(results) < len(moves)
        for number, move in enumerate(moves):
            if self._is_read and results.get(number, 0) > 0:
                self._take(number * self._slot_bytes, move, results[number])
        return [results.get(number, -ETIMEDOUT) for number in range(len(moves))]

    def _fill(self, begin: int, move: Move) -> None:
        for piece in move.pieces:
            self._buffer[begin : begin + piece.nbytes] = piece
            begin += piece.nbytes

    def _take(self, begin: int, move: Move, count: int) -> None:
        end = begin + count
        for piece in move.pieces:
            some = min(piece.nbytes, end - begin)
            piece[:some] = self._buffer[begin : begin + some]
            begin += some


class UsrbioFile:
    """FileIO through the user-space rings of 3FS, for pages of at most `slot_bytes`. Raises OSError."""

    def __init__(self, path: Path, slot_bytes: int, library: Any, mount_point: str) -> None:
        with ExitStack() as opened:
            self._file = open_regular(path)
            opened.callback(os.close, self._file)
            library.register_fd(self._file)
            opened.callback(library.deregister_fd, self._file)
            self._reads = _Ring(library, mount_point, slot_bytes, is_read=True)
            opened.callback(self._reads.close)
            self._writes = _Ring(library, mount_point, slot_bytes, is_read=False)
            opened.callback(self._writes.close)
            self._opened = opened.pop_all()

    def read(self, moves: Sequence[Move]) -> list[int]:
        """Read pages, ENTRIES at a time."""
        return [count for some in _submissions(moves) for count in self._reads.move(self._file, some)]

    def write(self, moves: Sequence[Move]) -> list[int]:
        """Write pages, ENTRIES at a time. A page of which only a part went is an error."""
        counts = [count for some in _submissions(moves) for count in self._writes.move(self._file, some)]
        sizes = [sum(piece.nbytes for piece in move.pieces) for move in moves]
        return [-EIO if 0 <= count < size else count for count, size in zip(counts, sizes, strict=True)]

    def close(self) -> None:
        """Deregister and close the file, and free the rings."""
        self._opened.close()


def _submissions(moves: Sequence[Move]) -> Iterator[Sequence[Move]]:
    return (moves[begin : begin + ENTRIES] for begin in range(0, len(moves), ENTRIES))
