"""FileStorage: one file for each object, written beside its place and linked there when it is whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from errno import EDQUOT, ELOOP, ENOSPC
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from xxhash import xxh3_64_hexdigest

from hicache.storage.answers import Answer
from hicache.storage.base import Pieces
from hicache.storage.checksums import identity
from hicache.storage.file_format import HEADER, read_object, write_object
from hicache.storage.file_recency import FileRecency
from hicache.storage.file_usage import FileUsage
from hicache.storage.options import Options
from hicache.storage.paged import PagedStorage
from hicache.storage.scope_folder import ScopeFolder
from hicache.storage.tally import page_bytes

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
