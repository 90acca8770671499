"""FileStorage: stores each page in its own file, in a folder that several processes may share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from errno import EDQUOT, EIO, ELOOP, ENOSPC
from heapq import heapify, heappop, heappush
from itertools import count
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Any, ClassVar, NamedTuple

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from hicache.storage.base import Pieces
from hicache.storage.file_lock import LOCK_TIMEOUT_S, MAX_LOCK_TIMEOUT_S
from hicache.storage.page_io import checksum, identity, read_into, synchronise_folder, write_from
from hicache.storage.paged import Answer, PagedStorage, page_bytes
from hicache.storage.registry import Options
from hicache.storage.scope_folder import ScopeFolder

HEADER = Struct("<8sQQ")
"""The format with its version, the length of the page in bytes, its checksum."""

FORMAT = b"hicache\x01"


def header_of(pieces: Pieces, seed: int) -> bytes:
    """What stands in front of a page."""
    return HEADER.pack(FORMAT, page_bytes(pieces), checksum(pieces, seed))


def write_object(file: int, pieces: Pieces, seed: int) -> None:
    """Write a page to an empty file. Raises OSError."""
    write_from(file, [memoryview(header_of(pieces, seed)), *pieces], 0)


def read_object(file: int, pieces: Pieces, seed: int) -> Answer:
    """Read a page directly into memory and verify it there. Answers DONE or the kind of damage. Raises OSError."""
    # One more byte than expected, so that one call also detects a file that is too long.
    header, beyond = bytearray(HEADER.size), bytearray(1)
    found = read_into(file, [memoryview(header), *pieces, memoryview(beyond)], 0)
    return checked(header, found, pieces, seed)


def checked(header: bytearray, found: int, pieces: Pieces, seed: int) -> Answer:
    """Whether a page was read: DONE or the kind of damage. `found`: the bytes of its file, with the header."""
    if found < HEADER.size:
        return Answer.SHORT
    form, length, expected = HEADER.unpack(header)
    if form != FORMAT:
        return Answer.CORRUPT
    wanted = page_bytes(pieces)
    if length != wanted or found != HEADER.size + wanted:
        return Answer.SHORT if min(length, found - HEADER.size) < wanted else Answer.LONG
    return Answer.DONE if checksum(pieces, seed) == expected else Answer.CORRUPT


COUNTS = Struct("<qqqQ")


class Counts(NamedTuple):
    """The number of objects, of their bytes, and the last time of use of an object that was stored."""

    objects: int
    object_bytes: int
    last_ns: int


class FileUsage:
    """The counts of a scope, in a file, with a checksum. All methods but `read` are called under the folder's lock.

    A process that dies between counting and linking leaves the counts too high, never too low, until the next scan.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    @property
    def is_known(self) -> bool:
        """Whether the counts were ever set, and are not damaged."""
        return self._found() is not None

    def read(self) -> Counts:
        """The counts. Raises OSError if they are damaged."""
        counts = self._found()
        if counts is None:
            raise OSError(EIO, "the counts of objects and bytes are damaged")
        return counts

    def set(self, objects: int, object_bytes: int, last_ns: int) -> None:
        """Write the counts."""
        counts = (objects, object_bytes, last_ns)
        os.pwrite(self._file, COUNTS.pack(*counts, _checksum(*counts)), 0)

    def add(self, objects: int, object_bytes: int, last_ns: int = 0) -> None:
        """Add a change to the counts."""
        known = self.read()
        self.set(known.objects + objects, known.object_bytes + object_bytes, max(known.last_ns, last_ns))

    def _found(self) -> Counts | None:
        found = os.pread(self._file, COUNTS.size, 0)
        if len(found) < COUNTS.size:
            return None
        *counts, expected = COUNTS.unpack(found)
        return Counts(*counts) if _checksum(*counts) == expected else None


def _checksum(*counts: int) -> int:
    return xxh3_64_intdigest(COUNTS.pack(*counts, 0))


Scan = Callable[[], Iterable[tuple[str, os.stat_result]]]
"""All files with their status."""


MAX_TIME_NS = 1 << 62
"""Times of use after this are not gone on from."""


class FileRecency:
    """The order of use of all files. The modification time of a file is the time of its last use; a heap orders files.

    A file that another process makes after a scan is younger than all files of the scan. So the head of the heap is the
    oldest file as long as it is older than the scan, and the folder is scanned again only after every file in it was
    used.
    """

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._heap: list[tuple[int, str]] = []
        self._scanned_ns = -1
        self._lock = Lock()
        self._last_ns = 0

    @property
    def last_ns(self) -> int:
        """The last time of use."""
        return self._last_ns

    def go_on_after(self, last_ns: int) -> None:
        """Give only later times from now on: the clock may have gone back since."""
        with self._lock:
            self._last_ns = max(self._last_ns, last_ns)

    def touch(self, file: int | str) -> None:
        """Record that a file, open or given by its path, is used now. Each use by one process has a different time."""
        with self._lock:
            self._last_ns = now = max(time.time_ns(), self._last_ns + 1)
        os.utime(file, ns=(now, now), follow_symlinks=isinstance(file, int))

    def take_oldest(self) -> tuple[str, os.stat_result] | None:
        """Take the least recently used file: its path and status. Called under the folder's lock."""
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
        """Put back a file that was taken. Called under the folder's lock."""
        heappush(self._heap, (status.st_mtime_ns, path))

    def _rescan(self) -> None:
        begin_ns = time.time_ns()
        self._heap = [(status.st_mtime_ns, path) for path, status in self._scan()]
        heapify(self._heap)
        self._scanned_ns = max([begin_ns, *[used_ns for used_ns, _ in self._heap]])
        self.go_on_after(min(self._scanned_ns, MAX_TIME_NS))


READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW

PREFIX_DIGITS = 2
"""The folder of a file is named after this many digits of the key's hash."""


class Staged(NamedTuple):
    """A page in a temporary file: its number in the batch, that file, its final path and its length in bytes."""

    number: int
    source: str
    path: str
    length: int


class FileStorage(PagedStorage):
    """Stores objects as files in `root/scope`, for any number of processes.

    The path of an object follows from its key, so no folder is listed to find it. Options: `root`, a folder;
    `capacity_bytes`, the limit of the bytes of pages, above which the least recently used objects are evicted (by
    default there is no limit); `fsync`, whether objects survive a loss of power, and not only the death of a process
    (by default they do not); `lock_timeout_s`, how long a lock is waited for that another process holds, 10 by default.
    """

    NAME: ClassVar[str] = "file"
    OPTIONS: ClassVar[tuple[str, ...]] = ("root", "capacity_bytes", "fsync", "lock_timeout_s")

    def __init__(self, scope: str, options: Mapping[str, Any]) -> None:
        super().__init__(scope)
        parsed = Options(self.NAME, options, self.OPTIONS)
        self._capacity_bytes = parsed.optional_count("capacity_bytes")
        self._is_synced = parsed.flag("fsync", False)
        lock_timeout_s = parsed.number("lock_timeout_s", LOCK_TIMEOUT_S, MAX_LOCK_TIMEOUT_S)
        self._folder = ScopeFolder(parsed.text("root"), scope, lock_timeout_s)
        self._usage = FileUsage(self._folder.lock_file)
        self._recency = FileRecency(self._scan)
        self._numbers = count()
        with self._folder.opening():
            if self._folder.remove_dead_writers() or not self._usage.is_known:
                self._count()

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
            answer = self._read_object(file, pieces, identity(self.scope, key))
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
        with suppress(OSError):
            self._recency.go_on_after(self._usage.read().last_ns)
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

    def _write_object(self, file: int, pieces: Pieces, seed: int) -> None:
        """Write a page to an empty file. Raises OSError."""
        write_object(file, pieces, seed)

    def _read_object(self, file: int, pieces: Pieces, seed: int) -> Answer:
        """Read a page and verify it. Answers DONE or the kind of damage. Raises OSError."""
        return read_object(file, pieces, seed)

    def _touch(self, path: str) -> bool:
        """Mark an object as used. Returns whether it exists."""
        try:
            self._recency.touch(path)
        except FileNotFoundError:
            return False
        return True

    def _stage(self, source: str, pieces: Pieces, seed: int) -> Answer:
        try:
            file = os.open(source, WRITE, 0o644)
            try:
                self._write_object(file, pieces, seed)
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

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the folder's lock, with counts that are not damaged."""
        with self._folder.locked():
            if not self._usage.is_known:
                self._count()
            yield

    def _link_all(self, staged: Sequence[Staged], answers: list[Answer], held: set[str]) -> None:
        try:
            with self._changing():
                for page in staged:
                    try:
                        answers[page.number] = self._link(page, held)
                    except OSError as error:
                        answers[page.number] = self.failed(error)
        finally:
            for page in staged:
                with suppress(OSError):
                    Path(page.source).unlink()
        if self._is_synced:
            for folder in {Path(page.path).parent for page in staged}:
                synchronise_folder(folder)

    def _link(self, page: Staged, held: set[str]) -> Answer:
        if os.path.lexists(page.path):
            return Answer.PRESENT
        if not self._ensure_available(page.length, held):
            return Answer.FULL
        self._usage.add(1, page.length, self._recency.last_ns)
        try:
            _link(page.source, page.path)
        except OSError:
            self._usage.add(-1, -page.length)
            raise
        return Answer.DONE

    def _ensure_available(self, wanted: int, held: set[str]) -> bool:
        """Evict files, but none of the batch, until there is room for `wanted` bytes. Returns whether there is room."""
        if self._capacity_bytes is None:
            return True
        while self._usage.read().object_bytes + wanted > self._capacity_bytes:
            oldest = self._recency.take_oldest()
            if oldest is None:
                # No file is left to evict, and the last scan has corrected the counts, so compare once more.
                return self._usage.read().object_bytes + wanted <= self._capacity_bytes
            if oldest[0] in held:
                self._recency.put_back(*oldest)
                return False
            self._unlink(*oldest)
            self.tally.removed(1)
        return True

    def _remove(self, path: str, seen: os.stat_result) -> None:
        """Remove a damaged file, unless another file has replaced it."""
        with self._changing(), suppress(FileNotFoundError):
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
        if not self._usage.is_known:
            with self._changing():
                return self._usage.read()[:2]
        return self._usage.read()[:2]

    def _release(self) -> None:
        self._folder.close()

    def _path(self, key: str) -> str:
        # No key contains a plus sign, so different keys have different names.
        return f"{self._folder.path}/{xxh3_64_hexdigest(key.encode())[:PREFIX_DIGITS]}/{key.replace('/', '+')}"

    def _count(self) -> None:
        """Set the counts to those of the files."""
        list(self._scan())

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        """All objects. Sets the counts to theirs."""
        found = [
            (entry.path, entry.stat(follow_symlinks=False))
            for folder in self._folder.path.iterdir()
            if len(folder.name) == PREFIX_DIGITS and folder.is_dir()
            for entry in os.scandir(folder)
            if not entry.is_dir(follow_symlinks=False)
        ]
        last_ns = max([status.st_mtime_ns for _, status in found], default=0)
        object_bytes = sum([status.st_size - HEADER.size for _, status in found])
        self._usage.set(len(found), object_bytes, min(last_ns, MAX_TIME_NS))
        return iter(found)


def _link(source: str, path: str) -> None:
    try:
        os.link(source, path)
    except FileNotFoundError:
        Path(path).parent.mkdir(exist_ok=True)
        os.link(source, path)
