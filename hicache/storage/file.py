"""FileStorage: one file for each page, in a folder that several processes may share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from errno import EDQUOT, EIO, ELOOP, ENOSPC
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from hicache.storage.base import Pieces
from hicache.storage.page_io import checksum, identity, read_into, write_from
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.registry import Options
from hicache.storage.scope_folder import ScopeFolder

HEADER = Struct("<8sQQ")
"""The format with its version, the length of the page in bytes, its checksum."""

FORMAT = b"hicache\x01"


def write_object(file: int, pieces: Pieces, seed: int) -> None:
    """Write a page to an empty file. Raises OSError."""
    header = HEADER.pack(FORMAT, page_bytes(pieces), checksum(pieces, seed))
    write_from(file, [memoryview(header), *pieces], 0)


def read_object(file: int, pieces: Pieces, seed: int) -> Answer:
    """Read a page straight into memory and look at it there: done, or in which way it is damaged. Raises OSError."""
    # One byte more than there may be, so that one call tells of a file that is too long.
    header, beyond = bytearray(HEADER.size), bytearray(1)
    found = read_into(file, [memoryview(header), *pieces, memoryview(beyond)], 0)
    if found < HEADER.size:
        return Answer.SHORT
    form, length, expected = HEADER.unpack(header)
    if form != FORMAT:
        return Answer.CORRUPT
    wanted = page_bytes(pieces)
    if length != wanted or found != HEADER.size + wanted:
        return Answer.SHORT if min(length, found - HEADER.size) < wanted else Answer.LONG
    return Answer.DONE if checksum(pieces, seed) == expected else Answer.CORRUPT


COUNTS = Struct("<qq")


class FileUsage:
    """Two numbers in a file. All but `read` is called under the folder's lock.

    A process that dies between counting and linking leaves them too high, never too low, until they are set.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    @property
    def is_known(self) -> bool:
        """Whether they were ever set."""
        return os.fstat(self._file).st_size == COUNTS.size

    def read(self) -> tuple[int, int]:
        """Objects and their bytes."""
        counts = os.pread(self._file, COUNTS.size, 0)
        if len(counts) != COUNTS.size:
            raise OSError(EIO, f"{len(counts)} of {COUNTS.size} bytes of the counts could be read")
        objects, object_bytes = COUNTS.unpack(counts)
        return objects, object_bytes

    def set(self, objects: int, object_bytes: int) -> None:
        """Say what was counted."""
        os.pwrite(self._file, COUNTS.pack(objects, object_bytes), 0)

    def add(self, objects: int, object_bytes: int) -> None:
        """Say what has changed."""
        known_objects, known_bytes = self.read()
        self.set(known_objects + objects, known_bytes + object_bytes)


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


READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

PREFIX_DIGITS = 2
"""Of a key's hash: the name of the folder that its file is in."""


class Staged(NamedTuple):
    """A page that was written beside its place: which of the batch, where it is, where it belongs, its bytes."""

    number: int
    source: str
    path: str
    length: int


class FileStorage(PagedStorage):
    """Keeps objects as files in `root/scope`, for any number of processes.

    Where an object lies follows from its key, so nothing is ever listed to find it. Options: `root`, a folder;
    `capacity_bytes` of pages, above which the least recently used go (by default none do); `fsync`, so that what was
    set survives a loss of power as well as the death of a process (by default it does not).
    """

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        told = Options("file", options, ("root", "capacity_bytes", "fsync"))
        self._capacity_bytes = told.optional_count("capacity_bytes")
        self._is_synced = told.flag("fsync", False)
        self._folder = ScopeFolder(told.text("root"), scope)
        self._usage = FileUsage(self._folder.lock_file)
        self._recency = FileRecency(self._scan)
        self._numbers = count()
        with self._folder.opening():
            if self._folder.bury() or not self._usage.is_known:
                list(self._scan())

    def _present(self, keys: Sequence[str]) -> list[bool]:
        return [os.path.lexists(self._path(key)) for key in keys]

    def _read(self, keys: Sequence[str], targets: Sequence[Pieces]) -> list[Answer]:
        return [self._read_one(key, pieces) for key, pieces in zip(keys, targets, strict=True)]

    def _read_one(self, key: str, pieces: Pieces) -> Answer:
        path = self._path(key)
        try:
            file = os.open(path, READ)
        except FileNotFoundError:
            return Answer.ABSENT
        except OSError as error:
            return self._drop_link(path) if error.errno == ELOOP else self.failed(error)
        try:
            answer = read_object(file, pieces, identity(self.scope, key))
            if answer.is_damage:
                self._remove(path, os.fstat(file))
            else:
                self._recency.touch(file)
        except OSError as error:
            return self.failed(error)
        else:
            return answer
        finally:
            os.close(file)

    def _write(self, keys: Sequence[str], sources: Sequence[Pieces]) -> list[Answer]:
        answers = [Answer.PRESENT] * len(keys)
        staged: list[Staged] = []
        for number, (key, pieces) in enumerate(zip(keys, sources, strict=True)):
            path, length = self._path(key), page_bytes(pieces)
            if self._touch(path):
                continue
            if self._capacity_bytes is not None and length > self._capacity_bytes:
                answers[number] = Answer.FULL
                continue
            source = f"{self._folder.unfinished}/{next(self._numbers)}"
            answers[number] = self._stage(source, pieces, identity(self.scope, key))
            if answers[number] is Answer.DONE:
                staged.append(Staged(number, source, path, length))
        if staged:
            self._link_all(staged, answers, {self._path(key) for key in keys})
        return answers

    def _touch(self, path: str) -> bool:
        """Whether an object is there, which is used by this."""
        try:
            self._recency.touch(path)
        except FileNotFoundError:
            return False
        return True

    def _stage(self, source: str, pieces: Pieces, seed: int) -> Answer:
        try:
            file = os.open(source, WRITE, 0o644)
            try:
                write_object(file, pieces, seed)
                self._recency.touch(file)
                if self._is_synced:
                    os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            with suppress(FileNotFoundError):
                Path(source).unlink()
            return Answer.FULL if error.errno in (ENOSPC, EDQUOT) else self.failed(error)
        return Answer.DONE

    def _link_all(self, staged: Sequence[Staged], answers: list[Answer], held: set[str]) -> None:
        with self._folder.locked():
            for page in staged:
                try:
                    answers[page.number] = self._link(page, held)
                except OSError as error:
                    answers[page.number] = self.failed(error)
                Path(page.source).unlink()
        if self._is_synced:
            for folder in {Path(page.path).parent for page in staged}:
                _sync_folder(folder)

    def _link(self, page: Staged, held: set[str]) -> Answer:
        if os.path.lexists(page.path):
            return Answer.PRESENT
        if not self._make_room(page.length, held):
            return Answer.FULL
        self._usage.add(1, page.length)
        try:
            _link(page.source, page.path)
        except OSError:
            self._usage.add(-1, -page.length)
            raise
        return Answer.DONE

    def _make_room(self, wanted: int, held: set[str]) -> bool:
        """Whether there is room now, without a file that the batch itself has brought or found."""
        if self._capacity_bytes is None:
            return True
        while self._usage.read()[1] + wanted > self._capacity_bytes:
            oldest = self._recency.take_oldest()
            if oldest is None:
                # Nothing is left that could go, and all was counted anew on the way: only now the count is sure.
                return self._usage.read()[1] + wanted <= self._capacity_bytes
            if oldest[0] in held:
                self._recency.put_back(*oldest)
                return False
            self._unlink(*oldest)
            self.tally.removed(1)
        return True

    def _remove(self, path: str, seen: os.stat_result) -> None:
        """Remove a damaged file, unless another is in its place by now."""
        with self._folder.locked(), suppress(FileNotFoundError):
            if os.path.samestat(os.lstat(path), seen):
                self._unlink(path, seen)

    def _drop_link(self, path: str) -> Answer:
        with self._folder.locked(), suppress(FileNotFoundError):
            Path(path).unlink()
        return Answer.CORRUPT

    def _unlink(self, path: str, status: os.stat_result) -> None:
        Path(path).unlink()
        self._usage.add(-1, HEADER.size - status.st_size)

    def _remove_all(self) -> bool:
        with self._folder.locked():
            for path, status in self._scan():
                self._unlink(path, status)
            return True

    def _holdings(self) -> tuple[int, int]:
        return self._usage.read()

    def _release(self) -> None:
        self._folder.close()

    def _path(self, key: str) -> str:
        # No key has a plus sign in it, so no two keys share a name.
        return f"{self._folder.path}/{xxh3_64_hexdigest(key.encode())[:PREFIX_DIGITS]}/{key.replace('/', '+')}"

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """All objects; what they come to is the usage afterwards."""
        found = [
            (entry.path, entry.stat(follow_symlinks=False))
            for folder in self._folder.path.iterdir()
            if len(folder.name) == PREFIX_DIGITS
            for entry in os.scandir(folder)
        ]
        self._usage.set(len(found), sum([status.st_size - HEADER.size for _, status in found]))
        return iter(found)


def _link(source: str, path: str) -> None:
    try:
        os.link(source, path)
    except FileNotFoundError:
        Path(path).parent.mkdir(exist_ok=True)
        os.link(source, path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
