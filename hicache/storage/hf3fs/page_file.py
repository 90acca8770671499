"""PageFile: the pages of one namespace in one file, each after a header with its length and checksum."""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISREG
from struct import Struct

from hicache.storage.base import Pieces
from hicache.storage.page_io import checksum, identity, read_into, write_from
from hicache.storage.paged import Answer, page_bytes

HEADER = Struct("<8sQQ")
"""The format with its version, the length of the page in bytes, a checksum of its key and its bytes."""

FORMAT = b"hf3fs\x00\x00\x01"

BLOCK_BYTES = 4_096


def slot_bytes_of(page_bytes_limit: int) -> int:
    """The size of a slot for pages of at most `page_bytes_limit` bytes and their header, in whole blocks."""
    return -(-(HEADER.size + page_bytes_limit) // BLOCK_BYTES) * BLOCK_BYTES


class PageFile:
    """`num_pages` slots for pages of at most `page_bytes`. Raises OSError when the file cannot be opened.

    Slots are not locked, and another process may write one at any time: the checksum, which includes the key, shows
    whether a page was read completely. The service assigns the last page first, so the last page has the first slot,
    and the file grows with its contents.
    """

    def __init__(self, path: Path, scope: str, num_pages: int, page_bytes: int) -> None:
        self._scope = scope
        self._num_pages = num_pages
        self._slot_bytes = slot_bytes_of(page_bytes)
        # A pipe would be waited for.
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        if not S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise OSError(f"{path} is no file")

    def read(self, key: str, page: int, pieces: Pieces) -> Answer:
        """Read a page directly into memory and verify it there. Answers DONE or the kind of damage. Raises OSError."""
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
