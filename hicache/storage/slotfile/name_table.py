"""NameTable: whether a name is there, in a time that does not depend on how many there are."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from hicache.storage.page_io import read_into, write_from

ROOM = 7
"""Names that a bucket has room for."""

FEWEST_BUCKETS = 1 << 10

ROW = Struct(f"<{ROOM + 1}Q")
"""A bucket, one line of the processor's cache: how many names had no room, then fingerprints, 0 for none."""

HEADER = Struct("<4Q32x")
MARK, MARK_AT = Struct("<Q"), 24

BOOT = Path("/proc/sys/kernel/random/boot_id")


class Header(NamedTuple):
    """`form`: of the file, and since when it is in memory. `buckets`, and the `names` in them. `mark`: see below."""

    form: int
    buckets: int
    names: int
    mark: int


class NameTable:
    """A file with the fingerprints of all names, read by any process at any time and changed by one at a time.

    It says the same as an index, which has another mark whenever it changes, and none twice: it is right while it has
    the same mark. Where it fails it has the mark 0, or one of the past, and can be made anew. After a loss of power it
    is not believed, since nobody synchronises it.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._form = xxh3_64_intdigest(b"names 1 " + BOOT.read_bytes())

    @property
    def mark(self) -> int:
        """Which state of the index this is. Raises OSError."""
        return self._header().mark

    @property
    def is_crowded(self) -> bool:
        """Whether too many names have to be looked up in the index, and more buckets would help. Raises OSError."""
        header = self._header()
        return header.names * 2 > header.buckets * ROOM

    def look_up(self, names: Sequence[str], mark: int) -> list[bool | None] | None:
        """Whether each name is there, None where the index has to be asked; None in all when this is another state.

        Raises OSError.
        """
        header = self._header()
        if header.mark != mark:
            return None
        answers = [_answer(self._row(value, header.buckets), value) for value in map(_fingerprint, names)]
        # If it was changed meanwhile, the mark tells.
        return answers if self._header() == header else None

    def change(self, before: int, after: int, added: Sequence[str], removed: Sequence[str]) -> bool:
        """Go from one state to the next; False when it has to be made anew. Raises OSError, and has to as well."""
        header = self._header()
        if header.mark != before:
            return False
        self._forget()
        for name in removed:
            if not self._replace(_fingerprint(name), 0, header.buckets):
                return False
        for name in added:
            self._replace(0, _fingerprint(name), header.buckets)
        self._put_header(header._replace(names=header.names + len(added) - len(removed), mark=after))
        return True

    def make(self, mark: int, count: int, names: Iterable[str]) -> None:
        """Take over so many names. Raises OSError when the disk has no room for them, or fails."""
        buckets = FEWEST_BUCKETS
        while count * 4 > buckets * ROOM:
            buckets *= 2
        size = HEADER.size + buckets * ROW.size
        os.posix_fallocate(self._file, 0, size)
        self._forget()
        rows = _rows(np.fromiter(map(_fingerprint, names), np.uint64, count), buckets)
        os.ftruncate(self._file, size)
        self._write(rows.tobytes(), HEADER.size)
        self._put_header(Header(self._form, buckets, count, mark))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _header(self) -> Header:
        header = Header(*HEADER.unpack(self._read(HEADER.size, 0)))
        return header if header.form == self._form and header.buckets else Header(self._form, 0, 0, 0)

    def _forget(self) -> None:
        """Be of no state. Before anything is changed: the disk may fail at the next byte."""
        self._write(bytes(MARK.size), MARK_AT)

    def _put_header(self, header: Header) -> None:
        """Be of a state. The mark comes last."""
        self._write(HEADER.pack(*header._replace(mark=0)), 0)
        self._write(MARK.pack(header.mark), MARK_AT)

    def _row(self, value: int, buckets: int) -> tuple[int, ...]:
        return ROW.unpack(self._read(ROW.size, _offset(value, buckets)))

    def _read(self, size: int, offset: int) -> bytes:
        """So many bytes, those behind the end of the file as zeros. Raises OSError."""
        read = os.pread(self._file, size, offset)
        if len(read) < size:
            rest = bytearray(size - len(read))
            read_into(self._file, [memoryview(rest)], offset + len(read))
            read += rest
        return read

    def _write(self, data: bytes, offset: int) -> None:
        write_from(self._file, [memoryview(data)], offset)

    def _replace(self, old: int, new: int, buckets: int) -> bool:
        """Put one fingerprint in the place of another, or count what has no place; False for what is not there."""
        value = old or new
        crowd, *values = self._row(value, buckets)
        if old in values:
            values[values.index(old)] = new
        else:
            crowd += 1 if new else -1
        if crowd >= 0:
            self._write(ROW.pack(crowd, *values), _offset(value, buckets))
        return crowd >= 0


def _fingerprint(name: str) -> int:
    return xxh3_64_intdigest(name.encode()) or 1


def _offset(value: int, buckets: int) -> int:
    return HEADER.size + value % buckets * ROW.size


def _answer(row: tuple[int, ...], value: int) -> bool | None:
    """By a bucket: what is not in it may be one of those that had no room."""
    return True if value in row[1:] else (None if row[0] else False)


def _rows(values: NDArray[np.uint64], buckets: int) -> NDArray[Any]:
    """All buckets with their fingerprints, [buckets, 1 + ROOM]."""
    places = (values % np.uint64(buckets)).astype(np.int64)
    order = np.argsort(places, kind="stable")
    values, places = values[order], places[order]
    held = np.bincount(places, minlength=buckets)
    column = 1 + np.arange(len(values)) - np.repeat(np.cumsum(held) - held, held)
    rows = np.zeros((buckets, 1 + ROOM), dtype="<u8")
    has_room = column <= ROOM
    rows[places[has_room], column[has_room]] = values[has_room]
    rows[:, 0] = np.maximum(held - ROOM, 0)
    return rows
