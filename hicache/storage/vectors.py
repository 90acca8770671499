"""Reads and writes a run of a file from and to memory in many pieces."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import islice

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
