"""FileIO: moves bytes between a file and memory; PlainFile does it by system calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from errno import EIO
from pathlib import Path
from typing import NamedTuple, Protocol

from hicache.storage.base import Pieces
from hicache.storage.page_io import open_regular, read_into, write_from


class Move(NamedTuple):
    """Bytes of a file from `offset` on, and the buffers that they go to or come from, one after the other."""

    offset: int
    pieces: Pieces


class FileIO(Protocol):
    """One open file, for any thread. What fails is an answer: the negative number of an error of the system."""

    def read(self, moves: Sequence[Move]) -> list[int]:
        """How many bytes came for each: fewer than wanted at the end of the file. Or the negative error number."""

    def write(self, moves: Sequence[Move]) -> list[int]:
        """How many bytes went for each, always all. Or the negative error number."""

    def close(self) -> None:
        """Close the file. No other call may be running."""


class PlainFile:
    """A file of any file system. Raises OSError when it cannot be opened."""

    def __init__(self, path: Path) -> None:
        self._file = open_regular(path)

    def read(self, moves: Sequence[Move]) -> list[int]:
        """Read directly into memory."""
        return [_moved(self._read, move) for move in moves]

    def write(self, moves: Sequence[Move]) -> list[int]:
        """Write directly from memory."""
        return [_moved(self._write, move) for move in moves]

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _read(self, move: Move) -> int:
        return read_into(self._file, move.pieces, move.offset)

    def _write(self, move: Move) -> int:
        write_from(self._file, move.pieces, move.offset)
        return sum(piece.nbytes for piece in move.pieces)


def _moved(act: Callable[[Move], int], move: Move) -> int:
    try:
        return act(move)
    except OSError as error:
        return -(error.errno or EIO)
