"""Bytes of pages: vectored reads and writes of files, checksums, and what stands in front of a page in a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from stat import S_ISREG

from xxhash import xxh3_64, xxh3_64_intdigest

from hicache.storage.base import Pieces

MAX_PIECES = 1_024
"""The most buffers of one system call."""


BLOCK_BYTES = 4_096


def whole_blocks(size: int) -> int:
    """The room of so many bytes in a file that is divided into slots: at least one block."""
    return max(1, -(-size // BLOCK_BYTES)) * BLOCK_BYTES


def open_regular(path: Path) -> int:
    """A descriptor of a file, which is created if it is missing. Raises OSError for all but a regular file."""
    # A pipe would be waited for.
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is not a file")
    return file


def read_into(file: int, pieces: Sequence[memoryview], offset: int) -> int:
    """Fill buffers from a file. Returns the number of bytes read, which is smaller only at the end of the file."""
    done, rest = 0, pieces
    while rest:
        count = os.preadv(file, rest[:MAX_PIECES], offset + done)
        if not count:
            break
        done += count
        rest = _after(rest, count)
    return done


def write_from(file: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Write buffers to a file one after the other. Raises OSError when the file cannot grow."""
    done, rest = 0, pieces
    while rest:
        count = os.pwritev(file, rest[:MAX_PIECES], offset + done)
        done += count
        rest = _after(rest, count)


def _after(pieces: Sequence[memoryview], count: int) -> Sequence[memoryview]:
    """The rest of the buffers after `count` bytes, without empty buffers at its beginning."""
    if count >= sum([piece.nbytes for piece in pieces]):
        return ()
    for number, piece in enumerate(pieces):
        if count < piece.nbytes:
            return [piece[count:], *islice(pieces, number + 1, None)]
        count -= piece.nbytes
    return ()


def synchronise_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power. Raises OSError."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def scatter(content: memoryview, pieces: Pieces) -> None:
    """Copy the bytes of a page into its buffers."""
    begin = 0
    for piece in pieces:
        piece[:] = content[begin : begin + piece.nbytes]
        begin += piece.nbytes


def identity(scope: str, key: str) -> int:
    """A number for a name: the seed of the checksum, so that no object is accepted under another name."""
    return xxh3_64(f"{scope}/{key}".encode()).intdigest()


def checksum(pieces: Pieces, seed: int) -> int:
    """63 bits of XXH3 over the bytes of a page, however it is divided into buffers."""
    if len(pieces) == 1:
        return xxh3_64_intdigest(pieces[0], seed) >> 1
    state = xxh3_64(seed=seed)
    for piece in pieces:
        state.update(piece)
    return state.intdigest() >> 1


HEADER_BYTES = 8
"""The checksum in front of the bytes of a page in a server, little-endian."""


def checksum_bytes(pieces: Pieces, seed: int) -> bytes:
    """The checksum as the first bytes of the object of a page in a server."""
    return checksum(pieces, seed).to_bytes(HEADER_BYTES, "little")
