"""PageFile: the pages of one namespace in one file, each after a header with its length and checksum."""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from hicache.storage.base import Pieces
from hicache.storage.hf3fs.file_io import FileIO, Move
from hicache.storage.page_io import checksum, identity, whole_blocks
from hicache.storage.paged import Answer, page_bytes

HEADER = Struct("<8sQQ")
"""The format with its version, the length of the page in bytes, a checksum of its key and its bytes."""

FORMAT = b"hf3fs\x00\x00\x01"


def slot_bytes_of(page_bytes_limit: int) -> int:
    """The size of a slot for pages of at most `page_bytes_limit` bytes and their header, in whole blocks."""
    return whole_blocks(HEADER.size + page_bytes_limit)


class Page(NamedTuple):
    """A page of the file, the key that it is for, and its bytes in memory."""

    key: str
    number: int
    pieces: Pieces


class PageFile:
    """`num_pages` slots for pages of at most `page_bytes`, in a file that this closes.

    Slots are not locked, and another process may write one at any time: the checksum, which includes the key, shows
    whether a page was read completely. The service assigns the last page first, so the last page has the first slot,
    and the file grows with its contents.
    """

    def __init__(self, file: FileIO, scope: str, num_pages: int, page_bytes: int) -> None:
        self._file = file
        self._scope = scope
        self._num_pages = num_pages
        self._slot_bytes = slot_bytes_of(page_bytes)

    def read(self, pages: Sequence[Page]) -> list[Answer | OSError]:
        """Read pages into memory and verify them there: DONE, the kind of damage, or the error of the system."""
        headers = [bytearray(HEADER.size) for _ in pages]
        found = self._file.read(
            [self._move(page, memoryview(header)) for page, header in zip(pages, headers, strict=True)]
        )
        return [
            self._verified(page, header, count) if count >= 0 else _error(count)
            for page, header, count in zip(pages, headers, found, strict=True)
        ]

    def write(self, pages: Sequence[Page]) -> list[Answer | OSError]:
        """Write pages: DONE, or the error of the system."""
        headers = [
            HEADER.pack(FORMAT, page_bytes(page.pieces), checksum(page.pieces, identity(self._scope, page.key)))
            for page in pages
        ]
        found = self._file.write(
            [self._move(page, memoryview(header)) for page, header in zip(pages, headers, strict=True)]
        )
        return [Answer.DONE if count >= 0 else _error(count) for count in found]

    def holds(self, pieces: Pieces) -> bool:
        """Whether a page fits into a slot."""
        return HEADER.size + page_bytes(pieces) <= self._slot_bytes

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _move(self, page: Page, header: memoryview) -> Move:
        return Move((self._num_pages - 1 - page.number) * self._slot_bytes, [header, *page.pieces])

    def _verified(self, page: Page, header: bytearray, found: int) -> Answer:
        if found < HEADER.size:
            return Answer.SHORT
        form, length, expected = HEADER.unpack(header)
        if form != FORMAT:
            return Answer.CORRUPT
        wanted = page_bytes(page.pieces)
        if length != wanted or found < HEADER.size + wanted:
            return Answer.LONG if length > wanted else Answer.SHORT
        is_whole = checksum(page.pieces, identity(self._scope, page.key)) == expected
        return Answer.DONE if is_whole else Answer.CORRUPT


def _error(count: int) -> OSError:
    return OSError(-count, os.strerror(-count))
