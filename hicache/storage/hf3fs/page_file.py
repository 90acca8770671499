"""PageFile: the pages of one namespace in one file, each behind a header that tells whose they are."""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

from hicache.storage.base import Pieces
from hicache.storage.page_io import checksum, identity, read_into, write_from
from hicache.storage.paged import Answer, page_bytes

HEADER = Struct("<8sQQ")
"""The format with its version, the length of the page in bytes, a checksum of its name and its bytes."""

FORMAT = b"hf3fs\x00\x00\x01"

BLOCK_BYTES = 4_096


def slot_bytes_of(most_bytes: int) -> int:
    """What a page of at most so many bytes takes with its header: whole blocks."""
    return -(-(HEADER.size + most_bytes) // BLOCK_BYTES) * BLOCK_BYTES


class PageFile:
    """`num_pages` slots of `slot_bytes`. Raises OSError when the file cannot be opened.

    A slot may be written by another process at any time, as nobody locks it: what was read is a page only when its
    checksum says that all of it is, and is this key's. Pages are handed out from the last one on, so that one lies
    first, and the file grows with what it holds.
    """

    def __init__(self, path: Path, scope: str, num_pages: int, slot_bytes: int) -> None:
        self._scope = scope
        self._num_pages = num_pages
        self._slot_bytes = slot_bytes
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)

    def read(self, key: str, page: int, pieces: Pieces) -> Answer:
        """Read a page straight into memory, and look at it there: done, or how it is damaged. Raises OSError."""
        header = bytearray(HEADER.size)
        found = read_into(self._file, [memoryview(header), *pieces], self._offset(page))
        if found < HEADER.size:
            return Answer.SHORT
        form, length, expected = HEADER.unpack(header)
        if form != FORMAT:
            return Answer.CORRUPT
        wanted = page_bytes(pieces)
        if length != wanted or found < HEADER.size + wanted:
            return Answer.LONG if length > wanted else Answer.SHORT
        return Answer.DONE if checksum(pieces, identity(self._scope, key)) == expected else Answer.CORRUPT

    def write(self, key: str, page: int, pieces: Pieces) -> None:
        """Write a page. Raises OSError."""
        header = HEADER.pack(FORMAT, page_bytes(pieces), checksum(pieces, identity(self._scope, key)))
        write_from(self._file, [memoryview(header), *pieces], self._offset(page))

    def holds(self, pieces: Pieces) -> bool:
        """Whether a page fits into a slot."""
        return HEADER.size + page_bytes(pieces) <= self._slot_bytes

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _offset(self, page: int) -> int:
        return (self._num_pages - 1 - page) * self._slot_bytes
