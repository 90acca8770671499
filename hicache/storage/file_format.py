"""What a file of one object looks like: a header with the length and the checksum, then the bytes of the page."""

from __future__ import annotations

from struct import Struct

from hicache.storage.answers import Answer
from hicache.storage.base import Pieces
from hicache.storage.checksums import checksum
from hicache.storage.tally import page_bytes
from hicache.storage.vectors import read_into, write_from

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
