"""NameTable: a hash table of names in a file, looked up in constant time for any number of names."""

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

BUCKET_NAMES = 7
"""The number of names in a bucket."""

MIN_BUCKETS = 1 << 6

ROW = Struct(f"<II{BUCKET_NAMES}Q")
"""A bucket, one cache line of the processor: a checksum, the number of names that did not fit, then fingerprints, 0 for
none. The checksum is bound to the number of the bucket."""

CHECKED_AT = 4

HEADER = Struct("<5Q24x")
MARK, MARK_AT = Struct("<Q"), 24

BOOT = Path("/proc/sys/kernel/random/boot_id")


class Header(NamedTuple):
    """`form`: a hash of the format's version and the boot id. `buckets`, `names`: their numbers. `mark`: see below.

    `checksum`: of the others.
    """

    form: int
    buckets: int
    names: int
    mark: int
    checksum: int

    @property
    def expected_checksum(self) -> int:
        """The checksum of the other fields."""
        return xxh3_64_intdigest(HEADER.pack(*self._replace(checksum=0)))


class NameTable:
    """A file with the fingerprints of all names, read by any process at any time, and changed by one process at a time.

    It is a copy of an index, which has a new, unique mark after each change: the table is valid while it has the same
    mark as the index. After a failure it has the mark 0 or an old one, and can be rebuilt. It is never synchronised
    with the disk, so it is invalid after a reboot. The header and each bucket have a checksum: a damaged bucket has no
    answer, and a table with a damaged header is invalid.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        self._form = xxh3_64_intdigest(b"names 2 " + BOOT.read_bytes())

    @property
    def mark(self) -> int:
        """The mark of the index whose names the table has. Raises OSError."""
        return self._header().mark

    @property
    def needs_more_buckets(self) -> bool:
        """Whether the buckets are more than half full, so that too many names do not fit. Raises OSError."""
        header = self._header()
        return header.names * 2 > header.buckets * BUCKET_NAMES

    def look_up(self, names: Sequence[str], mark: int) -> list[bool | None] | None:
        """Whether each name exists, None for a name that the index has to decide.

        Returns None instead of a list if the table does not have this mark. Raises OSError.
        """
        header = self._header()
        if header.mark != mark:
            return None
        answers = [self._answer(value, header.buckets) for value in map(_fingerprint, names)]
        # If the table was changed during the lookup, its mark differs now.
        return answers if self._header() == header else None

    def verify(self) -> bool:
        """Whether no bucket is damaged. Raises OSError."""
        buckets = self._header().buckets
        rows = memoryview(self._read(buckets * ROW.size, HEADER.size))
        starts = range(0, len(rows), ROW.size)
        return all(
            _checksum(rows[begin : begin + ROW.size], bucket)
            == int.from_bytes(rows[begin : begin + CHECKED_AT], "little")
            for bucket, begin in enumerate(starts)
        )

    def change(self, before: int, after: int, added: Sequence[str], removed: Sequence[str]) -> bool:
        """Apply a change of the index from mark `before` to mark `after`.

        Returns False if the table has to be rebuilt. Raises OSError; the table has to be rebuilt then as well.
        """
        header = self._header()
        if header.mark != before:
            return False
        self._clear_mark()
        values = [*((_fingerprint(name), 0) for name in removed), *((0, _fingerprint(name)) for name in added)]
        if not all(self._replace(old, new, header.buckets) for old, new in values):
            return False
        self._put_header(header._replace(names=header.names + len(added) - len(removed), mark=after))
        return True

    def make(self, mark: int, count: int, names: Iterable[str]) -> None:
        """Rebuild the table from `count` names. Raises OSError when the disk is full or fails."""
        buckets = MIN_BUCKETS
        while count * 4 > buckets * BUCKET_NAMES:
            buckets *= 2
        size = HEADER.size + buckets * ROW.size
        os.posix_fallocate(self._file, 0, size)
        self._clear_mark()
        rows = _rows(np.fromiter(map(_fingerprint, names), np.uint64, count), buckets)
        os.ftruncate(self._file, size)
        self._write(_with_checksums(rows), HEADER.size)
        self._put_header(Header(self._form, buckets, count, mark, 0))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _header(self) -> Header:
        header = Header(*HEADER.unpack(self._read(HEADER.size, 0)))
        is_sound = header.form == self._form and header.buckets and header.checksum == header.expected_checksum
        return header if is_sound else Header(self._form, 0, 0, 0, 0)

    def _clear_mark(self) -> None:
        """Set the mark to 0 before a change: if the disk fails during the change, the table is invalid."""
        self._write(bytes(MARK.size), MARK_AT)

    def _put_header(self, header: Header) -> None:
        """Write the header with its checksum, the mark last."""
        header = header._replace(checksum=header.expected_checksum)
        self._write(HEADER.pack(*header._replace(mark=0)), 0)
        self._write(MARK.pack(header.mark), MARK_AT)

    def _row(self, bucket: int) -> tuple[int, ...] | None:
        """A bucket: the number of names that did not fit, and fingerprints. None if it is damaged."""
        row = self._read(ROW.size, _offset(bucket))
        expected, *found = ROW.unpack(row)
        return tuple(found) if expected == _checksum(row, bucket) else None

    def _answer(self, value: int, buckets: int) -> bool | None:
        """Look up a fingerprint. None if it is not there, but some names did not fit, or if its bucket is damaged."""
        row = self._row(_bucket(value, buckets))
        if row is None:
            return None
        return True if value in row[1:] else (None if row[0] else False)

    def _read(self, size: int, offset: int) -> bytes:
        """Read `size` bytes; bytes after the end of the file are zero. Raises OSError."""
        read = os.pread(self._file, size, offset)
        if len(read) < size:
            rest = bytearray(size - len(read))
            read_into(self._file, [memoryview(rest)], offset + len(read))
            read += rest
        return read

    def _write(self, data: bytes, offset: int) -> None:
        write_from(self._file, [memoryview(data)], offset)

    def _replace(self, old: int, new: int, buckets: int) -> bool:
        """Replace one fingerprint by another, 0 for none; count names that do not fit.

        Returns False if `old` is missing, or the bucket is damaged.
        """
        bucket = _bucket(old or new, buckets)
        row = self._row(bucket)
        if row is None:
            return False
        overflow, *values = row
        if old in values:
            values[values.index(old)] = new
        else:
            overflow += 1 if new else -1
        if overflow >= 0:
            packed = ROW.pack(0, overflow, *values)
            checksum = _checksum(packed, bucket).to_bytes(CHECKED_AT, "little")
            self._write(checksum + packed[CHECKED_AT:], _offset(bucket))
        return overflow >= 0


def _fingerprint(name: str) -> int:
    return xxh3_64_intdigest(name.encode()) or 1


def _bucket(value: int, buckets: int) -> int:
    return value % buckets


def _offset(bucket: int) -> int:
    return HEADER.size + bucket * ROW.size


def _checksum(row: bytes | memoryview, bucket: int) -> int:
    """32 bits of XXH3 over a bucket without its checksum."""
    return xxh3_64_intdigest(row[CHECKED_AT:], bucket) & 0xFFFFFFFF


def _with_checksums(rows: NDArray[Any]) -> bytes:
    """The bytes of all buckets."""
    packed = memoryview(rows.tobytes())
    starts = range(0, len(packed), ROW.size)
    checksums = [_checksum(packed[begin : begin + ROW.size], bucket) for bucket, begin in enumerate(starts)]
    rows[:, 0] = (rows[:, 0] & np.uint64(0xFFFFFFFF << 32)) | np.array(checksums, dtype=np.uint64)
    return rows.tobytes()


def _rows(values: NDArray[np.uint64], buckets: int) -> NDArray[Any]:
    """All buckets with their fingerprints and without checksums, [buckets, 1 + BUCKET_NAMES]."""
    places = (values % np.uint64(buckets)).astype(np.int64)
    order = np.argsort(places, kind="stable")
    values, places = values[order], places[order]
    sizes = np.bincount(places, minlength=buckets)
    column = 1 + np.arange(len(values)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = np.zeros((buckets, 1 + BUCKET_NAMES), dtype="<u8")
    has_room = column <= BUCKET_NAMES
    rows[places[has_room], column[has_room]] = values[has_room]
    rows[:, 0] = np.maximum(sizes - BUCKET_NAMES, 0) << 32
    return rows
