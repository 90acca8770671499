"""Bytes of pages: vectored reads and writes of files, and checksums."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice

from xxhash import xxh3_64, xxh3_64_intdigest

from hicache.storage.base import Pieces

MOST_PIECES = 1_024
"""What one call of the system takes."""


def read_into(file: int, pieces: Sequence[memoryview], offset: int) -> int:
    """Fill pieces from a file; the bytes read, which are fewer only where the file ends."""
    done, rest = 0, pieces
    while rest:
        count = os.preadv(file, rest[:MOST_PIECES], offset + done)
        if not count:
            break
        done += count
        rest = _after(rest, count)
    return done


def write_from(file: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Write pieces to a file one after the other. Raises OSError when it takes no more."""
    done, rest = 0, pieces
    while rest:
        count = os.pwritev(file, rest[:MOST_PIECES], offset + done)
        done += count
        rest = _after(rest, count)


def _after(pieces: Sequence[memoryview], count: int) -> Sequence[memoryview]:
    """What is left of pieces after so many bytes; empty pieces behind them go too."""
    if count >= sum([piece.nbytes for piece in pieces]):
        return ()
    for number, piece in enumerate(pieces):
        if count < piece.nbytes:
            return [piece[count:], *islice(pieces, number + 1, None)]
        count -= piece.nbytes
    return ()


def identity(scope: str, key: str) -> int:
    """A number for a name. The checksum begins with it, so that no object passes for another's."""
    return xxh3_64_intdigest(f"{scope}/{key}".encode())


SLOT_SEED = 0
"""Of the checksums of pages in slots: the index knows whose bytes they are."""


def checksum(pieces: Pieces, seed: int) -> int:
    """63 bits of XXH3 over the bytes of a page, wherever it is cut."""
    if len(pieces) == 1:
        return xxh3_64_intdigest(pieces[0], seed) >> 1
    state = xxh3_64(seed=seed)
    for piece in pieces:
        state.update(piece)
    return state.intdigest() >> 1
