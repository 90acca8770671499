"""Journal: the file of a metadata service, and a log of the changes since it was written."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from threading import Lock
from typing import Any
from zlib import crc32

from hicache.errors import ConfigurationError
from hicache.storage.hf3fs.pages import Change
from hicache.storage.hf3fs.replay import replayed
from hicache.storage.hf3fs.snapshot import Snapshot, read_snapshots

LOG = logging.getLogger(__name__)

MIN_GROWTH_BYTES = 1 << 20
"""The file is rewritten when the journal is longer than this, and longer than the file itself."""

_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Journal:
    """Stores every change before it is answered, so that no page is assigned twice after a crash.

    A change is a line of the journal, with a checksum, synchronised before it is answered. The file is replaced as a
    whole, while changes go on: `rotate` begins a new journal and keeps the old one, `write` writes, synchronises and
    renames a file that has at least the changes of the old journal, `drop_old` removes that one. Lines that the file
    already includes may be replayed: the last line of a page decides its state. Raises ConfigurationError when another
    service uses the file, or when it cannot be used or read; the file is not changed then.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal, self._old = (path.with_name(path.name + end) for end in (".journal", ".journal.old"))
        self._lock = Lock()
        self._pending, self._is_torn = b"", False
        self._growth_bytes = MIN_GROWTH_BYTES
        opened = list[int]()
        try:
            opened.append(os.open(path.with_name(f"{path.name}.lock"), _APPEND, 0o644))
            _lock(opened[0])
            opened.append(os.open(self._journal, _APPEND, 0o644))
            self._locked, self._file = opened
            self.snapshots = self._read()
            self._bytes = os.fstat(self._file).st_size
        except (OSError, ValueError) as error:
            for file in opened:
                os.close(file)
            raise ConfigurationError(f"metadata file {path} cannot be used: {error}") from error

    @property
    def is_long(self) -> bool:
        """Whether the file should be rewritten."""
        return self._bytes > self._growth_bytes

    def flush(self) -> None:
        """Write what could not be written before. Raises OSError; the next change must wait then."""
        with self._lock:
            self._write_pending()

    def open(self, state: str, num_pages: int) -> None:
        """Append a new namespace. Raises OSError."""
        self._append({"state": state, "num_pages": num_pages})

    def drop(self, state: str) -> None:
        """Append the end of a namespace. Raises OSError."""
        self._append({"state": state, "dropped": True})

    def change(self, state: str, change: Change) -> None:
        """Append a change of keys and pages. Raises OSError."""
        if any(change):
            self._append({"state": state, **{name: value for name, value in change._asdict().items() if value}})

    def rotate(self) -> None:
        """Begin a new journal, unless an old one is still needed. Raises OSError; nothing is changed then."""
        with self._lock:
            self._write_pending()
            if self._old.exists():
                return
            self._journal.rename(self._old)
            try:
                file = os.open(self._journal, _APPEND | os.O_EXCL, 0o644)
            except OSError:
                self._old.rename(self._journal)
                raise
            os.close(self._file)
            self._file, self._bytes = file, 0
            _synchronise(self.path.parent)

    def write(self, pieces: Iterable[str]) -> None:
        """Replace the file. Raises OSError; the file is not changed then."""
        written, size = self.path.with_name(f"{self.path.name}.tmp"), 0
        try:
            with written.open("wb") as file:
                for piece in pieces:
                    size += file.write(piece.encode())
                file.flush()
                os.fsync(file.fileno())
            written.replace(self.path)
        except OSError:
            with suppress(OSError):
                written.unlink(missing_ok=True)
            raise
        _synchronise(self.path.parent)
        self._growth_bytes = max(MIN_GROWTH_BYTES, size)

    def drop_old(self) -> None:
        """Remove the old journal, whose changes the file has. Raises OSError."""
        self._old.unlink(missing_ok=True)

    def empty(self) -> None:
        """Remove all lines, when the file has all changes and no more come. Raises OSError."""
        with self._lock:
            self.drop_old()
            os.ftruncate(self._file, 0)
            self._pending, self._bytes = b"", 0

    def close(self) -> None:
        """Close the journal, and release its lock."""
        os.close(self._file)
        os.close(self._locked)

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode()
        with self._lock:
            self._pending += b"%08x %s\n" % (crc32(text), text)
            self._write_pending()

    def _write_pending(self) -> None:
        """Append what is pending, in the place of what was written of it in vain."""
        if not self._pending:
            return
        if self._is_torn:
            os.ftruncate(self._file, self._bytes)
        self._is_torn = True
        if os.write(self._file, self._pending) < len(self._pending):
            raise OSError(f"{self._journal}: only a part of a line could be written")
        os.fdatasync(self._file)
        self._is_torn = False
        self._bytes += len(self._pending)
        self._pending = b""

    def _read(self) -> dict[str, Snapshot]:
        snapshots = read_snapshots(self.path.read_text(encoding="utf-8")) if self.path.exists() else {}
        lines = [line for path in (self._old, self._journal) if path.exists() for line in _lines(path)]
        try:
            return replayed(snapshots, lines)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigurationError(f"its journal is invalid: {error!r}") from error


def _lock(file: int) -> None:
    try:
        flock(file, LOCK_EX | LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError("another service uses it") from error


def _lines(path: Path) -> list[Any]:
    """The lines of a journal. Drops a last one without its end. Raises ConfigurationError for a damaged one."""
    *lines, unfinished = path.read_bytes().split(b"\n")
    if unfinished:
        LOG.warning("%s: a line of %d bytes has no end and was dropped", path, len(unfinished))
    return [_line(number, line) for number, line in enumerate(lines, 1)]


def _line(number: int, line: bytes) -> Any:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % crc32(text):
        raise ConfigurationError(f"its journal is invalid: the checksum of line {number} is wrong")
    return json.loads(text)


def _synchronise(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
